// OpCost of attention and of the KV cache, from shapes and positions: exact, by closed forms over
// runs of positions. docs/metrics.md defines the figures.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/dtype.hpp"
#include "kernels/base/kv.hpp"
#include "kernels/base/op_cost.hpp"

namespace testbed {

// A query at position p sees the keys at positions (p - window, p]; window 0 = all up to p. Runs
// are ascending and disjoint.

// The keys that some query sees.
int64_t visible_tokens(std::span<const PositionRun> rows,
                       std::span<const PositionRun> keys,
                       int64_t window);
int64_t visible_tokens(const AttentionSequence& sequence, int64_t window);

// Sum over the queries of the keys each sees: the part of the score matrix that is computed.
int64_t visible_pairs(std::span<const PositionRun> rows,
                      std::span<const PositionRun> keys,
                      int64_t window);
int64_t visible_pairs(const AttentionSequence& sequence, int64_t window);

// QK^T and PV over the visible pairs: 2 * (head_dim + v_dim) FLOPs per head and pair. KV bytes:
// what the cache holds of each visible token, once; pages made from it are activations.
// Activations: q and out; a partial result is F32, with a log-sum-exp per row and head.
OpCost attention_cost(std::span<const AttentionSequence> sequences,
                      int64_t window,
                      int64_t n_heads,
                      const KvShape& kv,
                      bool partial = false);

// A partial result into another, m rows: both read and one written; 3 FLOPs an element.
OpCost merge_attention_cost(int64_t m, int64_t n_heads, int64_t v_dim);

// F32 results to their dtype: 1 FLOP an element.
OpCost finish_attention_cost(
    int64_t m, int64_t n_heads, int64_t v_dim, bool with_sinks, DType activation);

// What is stored of n_tokens tokens, from activations to the cache (tokens kept by another rank
// not counted).
OpCost kv_write_cost(int64_t n_tokens, const KvShape& kv);

// Blocks copied, n_tokens = whole blocks: activations, read and written. What is attended counts
// there, so that each cached token is read once per pass.
OpCost gather_blocks_cost(int64_t n_tokens, const KvShape& kv);

}  // namespace testbed
