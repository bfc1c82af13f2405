// Causal attention over the paged KV cache with an online softmax (Milakov & Gimelshein 2018,
// arXiv:1805.02867): the score matrix is never materialised. Prefill and decode are the same op.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/kv.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace testbed::cpu {

struct AttentionArgs {
  TensorView q;  // [rows, n_heads, head_dim] F32 or BF16
  KvView kv;     // dtype of q
  std::span<const AttentionSequence> sequences;
  int64_t window =
      0;  // key j is visible to query i when j <= i and (window == 0 or j > i - window)
  float scale = 1.0F;
  std::span<const int32_t> head_to_kv;  // [n_heads] -> local KV head
  TensorView out;                       // [rows, n_heads, head_dim], dtype of q
  float* lse = nullptr;                 // [rows, n_heads] log-sum-exp of the scaled scores, or null
};
// Sums, scores and softmax in f32.
void paged_attention(const AttentionArgs& args, ThreadPool& pool, Isa isa);

// Stores k, v [rows, n_kv_heads, head_dim] at slots[row] = block * block_size + offset.
void write_kv(
    TensorView k, TensorView v, const KvView& kv, std::span<const int64_t> slots, ThreadPool& pool);

}  // namespace testbed::cpu
