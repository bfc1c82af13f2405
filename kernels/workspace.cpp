#include "kernels/workspace.hpp"

#include <algorithm>

namespace testbed {

TensorView Workspace::take(DType dtype, Shape shape) {
  constexpr int64_t alignment = 64;
  constexpr int64_t smallest_chunk = int64_t{16} << 20;
  const int64_t n_bytes = dtype_bytes(dtype, shape.n_elements());
  const int64_t needed = (n_bytes + alignment - 1) / alignment * alignment;
  while (chunk_ < chunks_.size() && offset_ + needed > chunks_[chunk_].n_bytes()) {
    ++chunk_;
    offset_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    // Chunks double, so that a long prefill settles on a few of them.
    const int64_t last = chunks_.empty() ? 0 : chunks_.back().n_bytes();
    const int64_t n_words = std::max({needed, smallest_chunk, 2 * last}) / 4;
    chunks_.push_back(allocate_(DType::I32, {n_words}));
    offset_ = 0;
  }
  auto* begin = static_cast<std::byte*>(chunks_[chunk_].data()) + offset_;
  offset_ += needed;
  return {begin, dtype, shape};
}

int64_t Workspace::allocated_bytes() const {
  int64_t total = 0;
  for (const Tensor& chunk : chunks_) total += chunk.n_bytes();
  return total;
}

}  // namespace testbed
