#include "runtime/plan/op_list.hpp"

#include <algorithm>

#include "kernels/cost.hpp"

namespace testbed::plan {

void OpList::add(std::string_view name, OpKind kind, int64_t n_rows, OpCost cost) {
  if (n_rows == 0) return;
  if (copies_ && kind != OpKind::attention) cost.model_flops = 0;
  auto at =
      std::find_if(ops_.begin(), ops_.end(), [&](const PlannedOp& op) { return op.name == name; });
  if (at == ops_.end()) at = ops_.insert(at, {.name = name, .kind = kind, .cost = {}});
  ++at->calls;
  at->cost += cost;
}

void OpList::linear(std::string_view name, int64_t m, const MatrixShape& w, int64_t model_rows) {
  OpCost cost =
      linear_cost(m, w.n, w.k, w.replica ? 0 : w.n, formats_.weights.counted(w.role), activation());
  if (model_rows < m) cost.model_flops = w.replica ? 0 : 2 * model_rows * w.n * w.k;
  cost.weight_bytes =
      formats_.weights.n_bytes(w.n, w.k, w.role) + dtype_bytes(DType::F32, w.bias_rows);
  add(name, OpKind::linear, m, cost);
}

void OpList::grouped(
    std::string_view name, OpKind kind, int64_t m, int64_t n_matrices, const MatrixShape& w) {
  OpCost cost =
      grouped_linear_cost(m, n_matrices, w.n, w.k, formats_.weights.counted(w.role), activation());
  cost.weight_bytes = n_matrices * (formats_.weights.n_bytes(w.n, w.k, w.role) +
                                    dtype_bytes(DType::F32, w.bias_rows));
  add(name, kind, m, cost);
}

void OpList::embed(std::string_view name, int64_t m, int64_t n_gathered, int64_t width) {
  OpCost cost =
      embed_cost(m, n_gathered, width, formats_.weights.counted(MatrixRole::table), activation());
  cost.weight_bytes = formats_.weights.n_bytes(n_gathered, width, MatrixRole::table);
  add(name, OpKind::embed, m, cost);
}

void OpList::norm(std::string_view name, int64_t n_rows, int64_t d, bool with_residual) {
  add(name, OpKind::norm, n_rows, norm_cost(n_rows, d, with_residual, activation()));
}

void OpList::residual_add(std::string_view name, int64_t m, int64_t d) {
  add(name, OpKind::norm, m, add_cost(m * d, activation()));
}

void OpList::scale(std::string_view name, int64_t m, int64_t d) {
  add(name, OpKind::activation, m, scale_cost(m * d, activation()));
}

void OpList::copy(std::string_view name, int64_t m, int64_t n, int64_t n_written) {
  add(name, OpKind::copy, m, copy_cost(m * n, m * n_written, activation()));
}

}  // namespace testbed::plan
