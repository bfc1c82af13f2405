// A sequence whose cache holds every position from 0 on: what a rank without context parallelism
// attends to, for tests, probes and plans.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/kv.hpp"

namespace testbed {

class ContiguousSequence {
 public:
  // Query rows at the last n_rows of `context` positions. Enough to count by; without blocks.
  ContiguousSequence(int64_t n_rows, int64_t context)
      : rows_{context - n_rows, n_rows}, keys_{0, context} {}
  // The same, with positions [i * block_size, ...) in block_ids[i].
  ContiguousSequence(int64_t n_rows,
                     int64_t context,
                     std::span<const int32_t> block_ids,
                     int64_t block_size)
      : ContiguousSequence(n_rows, context) {
    blocks_.reserve(block_ids.size());
    for (int64_t i = 0; i * block_size < context; ++i) {
      blocks_.push_back(
          {.block = block_ids[static_cast<size_t>(i)],
           .n_tokens = static_cast<int32_t>(std::min(block_size, context - i * block_size)),
           .first_position = i * block_size});
    }
  }

  // Borrows from this.
  AttentionSequence view(int64_t first_row = 0) const& {
    return {first_row, rows_.n, {&rows_, 1}, blocks_, {&keys_, 1}};
  }
  AttentionSequence view(int64_t first_row = 0) && = delete;

 private:
  PositionRun rows_;
  PositionRun keys_;
  std::vector<KvBlock> blocks_;
};

}  // namespace testbed
