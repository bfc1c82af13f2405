// How a two-shot cuts its payload. Rank r sums and owns part r (split_range), if there are as many
// parts as ranks; else the first ranks do. The parts go in steps
// of one piece each, so that summing and exchange of neighbouring steps overlap and the buffers
// stay small.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/tensor.hpp"
#include "parallel/shard.hpp"

namespace testbed {

struct ReducePieces {
  TensorView x;
  int n_parts;
  int64_t piece_elements;

  // Pieces of at most so many bytes.
  static ReducePieces of(TensorView x, int n_parts, int64_t piece_bytes) {
    const int64_t limit = std::max<int64_t>(1, piece_bytes / dtype_bytes(x.dtype(), 1));
    return {x, n_parts, std::min(limit, split_range(x.n_elements(), n_parts, 0).size())};
  }
  int64_t element_bytes() const { return dtype_bytes(x.dtype(), 1); }
  int64_t slot_bytes() const { return piece_elements * element_bytes(); }
  int64_t n_steps() const {
    // Part 0 is the longest.
    return (split_range(x.n_elements(), n_parts, 0).size() + piece_elements - 1) / piece_elements;
  }
  // Elements of x that rank owner sums in a step; the last may be short or empty.
  IndexRange piece(int owner, int64_t step) const {
    if (owner >= n_parts) return {0, 0};
    const IndexRange part = split_range(x.n_elements(), n_parts, owner);
    const int64_t begin = std::min(part.end, part.begin + step * piece_elements);
    return {begin, std::min(part.end, begin + piece_elements)};
  }
  std::byte* at(IndexRange range) const {
    return static_cast<std::byte*>(x.data()) + range.begin * element_bytes();
  }
  int64_t n_bytes(IndexRange range) const { return range.size() * element_bytes(); }
};

}  // namespace testbed
