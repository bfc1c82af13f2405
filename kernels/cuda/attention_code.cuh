// What the attention kernels share: where a key lies, scores, and how a row's result is stored.
#pragma once

#include "kernels/cuda/attention_kernels.hpp"
#include "kernels/cuda/device_code.cuh"

namespace testbed::cuda {

constexpr float log2_e = 1.4426950408889634F;
constexpr float ln_2 = 0.6931471805599453F;

// Where key j of a sequence lies, in tokens of the cache seen as [n_blocks * n_kv_heads *
// block_size]; -1 if the slot holds no token.
__device__ inline int64_t key_slot(const PagedKv& kv, int32_t table, int32_t kv_head, int32_t j) {
  const int32_t b = kv.block_shift >= 0 ? j >> kv.block_shift : j / kv.block_size;
  const int32_t offset = j - b * kv.block_size;
  if (kv.block_tokens != nullptr && offset >= kv.block_tokens[table + b]) return -1;
  const int64_t block = kv.blocks[table + b];
  return (block * kv.n_kv_heads + kv_head) * kv.block_size + offset;
}

// The score of a product q.k, times log2(e).
__device__ inline float score_of(float product, float scale, float softcap) {
  const float score = product * scale;
  return softcap > 0.0F ? softcap * tanhf(score / softcap) : score;
}

// A maximum to subtract: without a visible key nothing (its exponentials are zeros).
__device__ inline float finite_maximum(float maximum) {
  return maximum == -INFINITY ? 0.0F : maximum;
}

// What makes of an unnormalised sum (relative to maximum) the result of a head.
__device__ inline float row_factor(const AttentionCall& call,
                                   int32_t head,
                                   float maximum,
                                   float sum) {
  if (sum == 0.0F) return 0.0F;
  if (call.sinks == nullptr) return 1.0F / sum;
  const float sink = call.sinks[head] * log2_e;
  const float top = fmaxf(maximum, sink);
  const float keep = exp2f(maximum - top);
  return keep / (sum * keep + exp2f(sink - top));
}

__device__ inline void store_lse(const AttentionCall& call, int64_t at, float maximum, float sum) {
  if (call.lse != nullptr) call.lse[at] = (maximum + log2f(sum)) * ln_2;
}

__device__ inline void store_out(const AttentionCall& call, int64_t at, float x) {
  if (call.out_is_f32 != 0) {
    static_cast<float*>(call.out)[at] = x;
  } else {
    store_one(static_cast<bf16*>(call.out) + at, x);
  }
}

// The maximum and sum of a split, behind all the splits' outputs.
__device__ inline float* split_stats(const AttentionCall& call, int64_t split) {
  const int64_t n = int64_t{call.n_rows} * call.n_heads * call.n_splits;
  return call.partial + n * call.kv.v_dim + 2 * split;
}

}  // namespace testbed::cuda
