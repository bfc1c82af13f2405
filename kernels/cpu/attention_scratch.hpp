// A thread's memory for attention, kept between calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/tensor.hpp"
#include "kernels/cpu/attention_blocks.hpp"
#include "kernels/cpu/attention_partial.hpp"

namespace testbed::cpu {

// Of a chunk and of the tile after it, which the kernels prefetch.
constexpr int64_t attention_pointer_keys = attention_chunk_keys + attention_tile;

struct AttentionScratch {
  Tensor memory;
  float* q = nullptr;      // [max_rows, padded_dim]
  bf16* q_bf16 = nullptr;  // the same, of BF16 queries
  float* tile = nullptr;   // attention_scratch_floats()
  Partial total;           // of a block of rows
  Partial chunk;           // of one chunk of its keys
  const std::byte* k_rows[attention_pointer_keys];
  const std::byte* v_rows[attention_pointer_keys];

  void reserve(int64_t padded_dim, int64_t padded_v_dim) {
    const int64_t q_floats = attention_max_rows * padded_dim;
    const int64_t p_floats = partial_floats(attention_max_rows, padded_v_dim);
    const int64_t n =
        q_floats + q_floats / 2 + 2 * p_floats + attention_scratch_floats(padded_dim, padded_v_dim);
    if (memory.empty() || memory.n_elements() < n) memory = Tensor(DType::F32, Shape{n});
    q = memory.as<float>();
    q_bf16 = reinterpret_cast<bf16*>(q + q_floats);
    float* partials = q + q_floats + q_floats / 2;
    total = partial_at(partials, attention_max_rows, padded_v_dim);
    chunk = partial_at(partials + p_floats, attention_max_rows, padded_v_dim);
    tile = partials + 2 * p_floats;
  }
};

inline AttentionScratch& thread_scratch(int64_t padded_dim, int64_t padded_v_dim) {
  static thread_local AttentionScratch scratch;
  scratch.reserve(padded_dim, padded_v_dim);
  return scratch;
}

}  // namespace testbed::cpu
