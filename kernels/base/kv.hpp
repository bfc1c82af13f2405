// Plain descriptions of a paged KV cache and of the sequences that attend to it. Blocks carry
// positions, so that attention works alike on a rank's own cache, on the part of it that context
// parallelism left there, and on blocks that another rank sent.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/dtype.hpp"

namespace testbed {

// What a layer's cache stores of one token.
struct KvShape {
  int64_t n_kv_heads = 0;     // on this device
  int64_t head_dim = 0;       // of keys
  int64_t v_dim = 0;          // of values
  DType dtype = DType::BF16;  // the compute dtype
  bool v_in_k = false;        // values are the first v_dim elements of each key
  // Pages that were made from the cache (MLA's expanded keys and values): the elements of a token
  // in the cache that they stand for. -1: they are the cache.
  int64_t cached_elements = -1;
  bool is_cache() const { return cached_elements < 0; }
  int64_t token_elements() const { return n_kv_heads * (head_dim + (v_in_k ? 0 : v_dim)); }
  int64_t token_bytes() const { return dtype_bytes(dtype, token_elements()); }
};

// Keys [n_blocks, n_kv_heads, block_size, head_dim] and values [n_blocks, n_kv_heads, block_size,
// v_dim] of one layer on one device. v == nullptr: the values are the first v_dim elements of each
// key (MLA's latent). Borrowed.
struct KvView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::BF16;  // the compute dtype
  int64_t n_blocks = 0;
  int64_t block_size = 0;        // tokens
  int64_t n_kv_heads = 0;        // on this device
  int64_t head_dim = 0;          // of keys
  int64_t v_dim = 0;             // of values
  int64_t cached_elements = -1;  // KvShape
  KvShape shape() const {
    return {n_kv_heads, head_dim, v_dim, dtype, v == nullptr, cached_elements};
  }
  // Stored elements of one token.
  int64_t token_elements() const { return shape().token_elements(); }
  int64_t block_bytes() const { return dtype_bytes(dtype, token_elements() * block_size); }
};

// Positions [first, first + n).
struct PositionRun {
  int64_t first = 0;
  int64_t n = 0;
  int64_t end() const { return first + n; }
  bool operator==(const PositionRun&) const = default;
};

// The tokens at positions [first_position, first_position + n_tokens) lie in the first n_tokens
// slots of a block.
struct KvBlock {
  int32_t block = 0;
  int32_t n_tokens = 0;
  int64_t first_position = 0;
  bool operator==(const KvBlock&) const = default;
};

// The query rows of one sequence in a batch and the cached tokens at hand for them. A query at
// position i sees the keys at positions <= i, clipped by the window. All ascending by position.
struct AttentionSequence {
  int64_t first_row = 0;
  int64_t n_rows = 0;
  std::span<const PositionRun> rows;  // positions of the query rows, n_rows together
  std::span<const KvBlock> blocks;    // where the keys are
  std::span<const PositionRun> keys;  // their positions: the blocks' as runs
};

}  // namespace testbed
