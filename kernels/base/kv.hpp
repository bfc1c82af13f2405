// Plain descriptions of a paged KV cache and of the sequences that attend to it.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace testbed {

// Keys and values of one layer on one device, each [n_blocks, n_kv_heads, block_size, head_dim].
// Borrowed.
struct KvView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::BF16;  // the compute dtype
  int64_t n_blocks = 0;
  int64_t block_size = 0;  // tokens
  int64_t n_kv_heads = 0;  // on this device
  int64_t head_dim = 0;
};

// The query rows of one sequence in a batch. A query at position i sees the cached keys 0..i,
// clipped by the window.
struct AttentionSequence {
  int64_t first_row = 0;
  int64_t n_rows = 0;
  int64_t first_position = 0;  // of its first query row
  const int32_t* block_table =
      nullptr;  // [position / block_size] -> block; -1 = released, outside the window
};

}  // namespace testbed
