// Causal attention over cached blocks with an online softmax (Milakov & Gimelshein 2018,
// arXiv:1805.02867): the score matrix is never materialised. Prefill and decode are the same op.
// And what belongs to it: partial results (log-sum-exp) and the cache's writes and copies.
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
  // The key at position j is visible to the query at i when j <= i and (window == 0 or j > i -
  // window).
  int64_t window = 0;
  float scale = 1.0F;
  float softcap = 0.0F;                 // score = softcap * tanh(score / softcap); 0 = none
  std::span<const int32_t> head_to_kv;  // [n_heads] -> local KV head
  TensorView sinks;                     // F32 [n_heads] or empty
  TensorView out;                       // [rows, n_heads, v_dim], dtype of q, or F32 with lse
  TensorView lse;  // F32 [rows, n_heads] or empty: log-sum-exp of the scores, without sinks
};
// Sums, scores and softmax in f32. A row without a visible key gets 0, and -inf as log-sum-exp.
// With lse the result is partial: sinks are left to finish_attention.
void paged_attention(const AttentionArgs& args, ThreadPool& pool, Isa isa);

// total, part F32 [rows, n_heads, v_dim]; their lse F32 [rows, n_heads].
void merge_attention(
    TensorView total, TensorView total_lse, TensorView part, TensorView part_lse, ThreadPool& pool);

// out [rows, n_heads, v_dim] F32 or BF16 = total; sinks F32 [n_heads] or empty take their share.
void finish_attention(
    TensorView total, TensorView total_lse, TensorView sinks, TensorView out, ThreadPool& pool);

// Stores k [rows, n_kv_heads, head_dim] and v [rows, n_kv_heads, v_dim] (empty if kv has no v) at
// slots[row] = block * block_size + offset; -1 skips the row.
void write_kv(
    TensorView k, TensorView v, const KvView& kv, std::span<const int64_t> slots, ThreadPool& pool);

// Block blocks[i] of `from` to block i of `to`, which has the same shape per block.
void gather_blocks(const KvView& from,
                   std::span<const int32_t> blocks,
                   const KvView& to,
                   ThreadPool& pool);

}  // namespace testbed::cpu
