// Many matrices in one op, and what routes rows to them: shapes checked, costs counted.
#include <algorithm>

#include "kernels/device_counted.hpp"

namespace testbed {
namespace {

void check_alike(std::span<const WeightMatrix> weights) {
  for (const WeightMatrix& w : weights) {
    CHECK(w.n_rows() == weights[0].n_rows() && w.n_cols() == weights[0].n_cols());
    CHECK(w.format() == weights[0].format());
  }
}

int64_t n_experts_with_rows(const ExpertRows& experts) {
  int64_t n = 0;
  for (int64_t e = 0; e < experts.n_experts(); ++e) n += experts.n_rows(e) > 0 ? 1 : 0;
  return n;
}

}  // namespace

void Device::head_linear(TensorView x, std::span<const WeightMatrix> weights, TensorView y) {
  const auto n_heads = static_cast<int64_t>(weights.size());
  CHECK(x.shape().rank() == 3 && y.shape().rank() == 3 && n_heads > 0);
  CHECK(x.shape()[0] == y.shape()[0] && x.shape()[1] == n_heads && y.shape()[1] == n_heads);
  CHECK(x.shape()[2] == weights[0].n_cols() && y.shape()[2] == weights[0].n_rows());
  check_alike(weights);
  const int64_t m = x.n_rows() * n_heads;
  const WeightMatrix& w = weights[0];
  counted(
      {OpKind::linear,
       m,
       product_operands(x, w.format()),
       {.m = m, .n = w.n_rows(), .k = w.n_cols(), .n_matrices = n_heads}},
      [&] {
        return grouped_linear_cost(m, n_heads, w.n_rows(), w.n_cols(), w.format(), x.dtype());
      },
      [&] { do_head_linear(x, weights, y); });
}

void Device::route(TensorView logits,
                   const RoutingParams& params,
                   TensorView ids,
                   TensorView weights) {
  const RoutingRule& rule = params.rule;
  const int64_t n_experts = row_width(logits);
  CHECK(logits.shape().rank() == 2 && logits.dtype() == DType::F32);
  CHECK(ids.dtype() == DType::I32 && weights.dtype() == DType::F32);
  CHECK(ids.n_elements() == logits.n_rows() * rule.top_k);
  CHECK(weights.n_elements() == logits.n_rows() * rule.top_k);
  CHECK(rule.n_groups > 0 && n_experts % rule.n_groups == 0 && rule.top_k > 0);
  CHECK(rule.top_k_groups > 0 && rule.top_k_groups <= rule.n_groups);
  CHECK(rule.top_k <= n_experts / rule.n_groups * rule.top_k_groups);
  CHECK(params.selection_bias.empty() || params.selection_bias.n_elements() == n_experts);
  CHECK(params.expert_scale.empty() || params.expert_scale.n_elements() == n_experts);
  const int64_t n_parameters =
      (params.selection_bias.empty() ? 0 : 1) + (params.expert_scale.empty() ? 0 : 1);
  counted(
      {OpKind::router, logits.n_rows(), DType::F32},
      [&] { return router_cost(logits.n_rows(), n_experts, rule.top_k, n_parameters); },
      [&] { do_route(logits, params, ids, weights); });
}

void Device::expert_linear(TensorView x,
                           const ExpertRows& experts,
                           std::span<const WeightMatrix> weights,
                           TensorView biases,
                           TensorView y,
                           int64_t n_model_rows) {
  CHECK(experts.n_experts() == static_cast<int64_t>(weights.size()));
  CHECK(experts.first_row.front() == 0 && experts.first_row.back() == x.n_rows());
  CHECK(x.n_rows() == y.n_rows());
  if (x.n_rows() == 0) return;
  const WeightMatrix& w = weights[0];
  check_alike(weights);
  CHECK(row_width(x) == w.n_cols() && row_width(y) == w.n_rows());
  CHECK(biases.empty() ||
        (biases.dtype() == DType::F32 && biases.n_elements() == experts.n_experts() * w.n_rows()));
  const int64_t n_touched = n_experts_with_rows(experts);
  counted(
      {OpKind::expert_linear,
       x.n_rows(),
       product_operands(x, w.format()),
       {.m = x.n_rows(), .n = w.n_rows(), .k = w.n_cols(), .n_matrices = n_touched}},
      [&] {
        OpCost cost = grouped_linear_cost(
            x.n_rows(), n_touched, w.n_rows(), w.n_cols(), w.format(), x.dtype());
        if (!biases.empty()) cost.weight_bytes += n_touched * dtype_bytes(DType::F32, w.n_rows());
        cost.model_flops = 2 * n_model_rows * w.n_rows() * w.n_cols();
        return cost;
      },
      [&] { do_expert_linear(x, experts, weights, biases, y); });
}

void Device::combine_rows(TensorView x, const WeightedRows& sums, TensorView out) {
  const auto n_terms = static_cast<int64_t>(sums.rows.size());
  CHECK(static_cast<int64_t>(sums.first.size()) == out.n_rows() + 1);
  CHECK(sums.first.front() == 0 && sums.first.back() == n_terms);
  CHECK(static_cast<int64_t>(sums.weights.size()) == n_terms);
  CHECK(row_width(x) == row_width(out) && x.dtype() == out.dtype());
  counted(
      {OpKind::combine, out.n_rows(), x.dtype()},
      [&] { return combine_cost(n_terms, out.n_rows(), row_width(out), x.dtype()); },
      [&] { do_combine_rows(x, sums, out); });
}

}  // namespace testbed
