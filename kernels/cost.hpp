// OpCost of each op, from shapes: the one place that the counters, the reports and the simulator
// read. docs/metrics.md defines the figures; a multiply-add is two FLOPs.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/dtype.hpp"
#include "kernels/base/kv.hpp"
#include "kernels/base/op_cost.hpp"

namespace testbed {

// y[m, n] = x[m, k] * W[n, k]^T: 2mnk FLOPs, W read once. model_rows of the n rows count for MFU
// (replicas do not).
OpCost linear_cost(
    int64_t m, int64_t n, int64_t k, int64_t model_rows, DType weight, DType activation);

// Gathers n_gathered of a table's rows (those of the m tokens that this device owns) of d_model
// elements.
OpCost embed_cost(int64_t m, int64_t n_gathered, int64_t d_model, DType weight, DType activation);

// n_rows rows of d elements, read and written once each, plus the norm weight: about 4 FLOPs an
// element. n_reads: 1 for a plain norm, 2 when a residual is added, which is also written.
OpCost norm_cost(int64_t n_rows, int64_t d, bool with_residual, DType activation);

// n elements rotated in pairs: 3 FLOPs an element, in place.
OpCost rope_cost(int64_t n_elements, DType activation);

// K and V of n_rows tokens stored.
OpCost kv_write_cost(int64_t n_rows, int64_t n_kv_heads, int64_t head_dim, DType dtype);

// The cached tokens that the sequence's queries see: each once per pass, clipped by the window (0 =
// none).
int64_t visible_tokens(const AttentionSequence& sequence, int64_t window);
// Sum over the queries of the keys each sees: the causal half of the score matrix, clipped by the
// window.
int64_t visible_pairs(const AttentionSequence& sequence, int64_t window);

// QK^T and PV over the visible pairs: 4*head_dim FLOPs per head and pair. KV bytes: K and V of each
// visible token once.
OpCost attention_cost(std::span<const AttentionSequence> sequences,
                      int64_t window,
                      int64_t n_heads,
                      int64_t n_kv_heads,
                      int64_t head_dim,
                      DType dtype);

// silu(gate) * up: [m, 2f] read, [m, f] written; about 5 FLOPs an element.
OpCost activation_cost(int64_t m, int64_t d_ff, DType activation);

// n elements read and one result per row; or n copied.
OpCost copy_cost(int64_t n_elements_read, int64_t n_elements_written, DType dtype);

}  // namespace testbed
