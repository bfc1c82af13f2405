// OpCost of each op, from shapes: the one place that the counters, the reports and the simulator
// read; attention's and the KV cache's are in kernels/attention_cost.hpp. docs/metrics.md defines
// the figures; a multiply-add is two FLOPs.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.hpp"
#include "kernels/base/op_cost.hpp"
#include "kernels/base/weight_format.hpp"

namespace testbed {

// What turning quantised weights into numbers costs a GPU, in instructions of its lanes; 0 for
// plain weights. Counted in the sm_90 code of kernels/cuda/quantised_linear.cu (the loop of
// FewRows, per 64 weights, of the costlier group size): all instructions, or twice the integer ones
// if that is more, since an SM starts 128 lanes' instructions a cycle and does 64 lanes' of
// integers. docs/calibration.md has the counts.
int64_t expansion_ops(int64_t n_weights, const WeightFormat& weight);
constexpr int64_t lanes_per_sm = 128;

// Products of so many rows expand quantised weights as they multiply, which overlaps the reading of
// weights; above, the weights are expanded first. 64 rows need 128 FLOPs a weight, for which tensor
// cores take as long as memory does for a byte.
constexpr int64_t most_fused_rows = 64;

// y[m, n] = x[m, k] * W[n, k]^T: 2mnk FLOPs, W read once. model_rows of the n rows count for MFU
// (replicas do not).
OpCost linear_cost(int64_t m,
                   int64_t n,
                   int64_t k,
                   int64_t model_rows,
                   const WeightFormat& weight,
                   DType activation);

// m rows, each times one of n_matrices matrices [n, k]: 2mnk FLOPs; the matrices that have rows are
// read once. Experts: m counts a token once per chosen expert. Heads: m = tokens * heads.
OpCost grouped_linear_cost(int64_t m,
                           int64_t n_matrices,
                           int64_t n,
                           int64_t k,
                           const WeightFormat& weight,
                           DType activation);

// Gathers n_gathered of a table's rows (those of the m tokens that this device owns) of d_model
// elements.
OpCost embed_cost(
    int64_t m, int64_t n_gathered, int64_t d_model, const WeightFormat& weight, DType activation);

// n_rows rows of d elements, read and written once each, plus the norm weight: about 4 FLOPs an
// element. n_reads: 1 for a plain norm, 2 when a residual is added, which is also written.
OpCost norm_cost(int64_t n_rows, int64_t d, bool with_residual, DType activation);

// residual += x of n elements: two read and one written; 1 FLOP an element.
OpCost add_cost(int64_t n_elements, DType activation);

// n elements times a factor, in place: 1 FLOP an element.
OpCost scale_cost(int64_t n_elements, DType activation);

// cap * tanh(x / cap) of n elements, in place: about 5 FLOPs an element.
OpCost softcap_cost(int64_t n_elements, DType activation);

// n elements rotated in pairs: 3 FLOPs an element, in place.
OpCost rope_cost(int64_t n_elements, DType activation);

// activation(gate, up): [m, 2f] read, [m, f] written; about 5 FLOPs an element.
OpCost activation_cost(int64_t m, int64_t d_ff, DType activation);

// Scores of m rows of n_experts F32 logits, about 5 FLOPs a logit; top_k ids and weights written.
// n_parameters F32 values per expert: a bias, a scale.
OpCost router_cost(int64_t m, int64_t n_experts, int64_t top_k, int64_t n_parameters);

// n_terms rows of d elements summed by weight into n_out rows: 2 FLOPs an element read.
OpCost combine_cost(int64_t n_terms, int64_t n_out, int64_t d, DType activation);

// n elements read and one result per row; or n copied.
OpCost copy_cost(int64_t n_elements_read, int64_t n_elements_written, DType dtype);

}  // namespace testbed
