// The ops of a step as they are added up: each name once, with its calls and their cost.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/base/op_cost.hpp"
#include "runtime/plan/step_ops.hpp"

namespace testbed::plan {

// W [n, k].
struct MatrixShape {
  int64_t n = 0;
  int64_t k = 0;
  int64_t bias_rows = 0;  // F32 values read with it
  bool replica = false;   // another rank's copy counts as the model's
  MatrixRole role = MatrixRole::layer;
};

class OpList {
 public:
  // copies: another rank does the same, and its FLOPs count as the model's; attention is shared.
  OpList(const StepFormats& formats, bool copies) : formats_(formats), copies_(copies) {}

  DType activation() const { return formats_.activation; }
  int64_t column_granularity() const { return formats_.weights.column_granularity(); }

  // Ops without rows do not run.
  void add(std::string_view name, OpKind kind, int64_t n_rows, OpCost cost);
  // model_rows: rows that count for MFU.
  void linear(std::string_view name, int64_t m, const MatrixShape& w, int64_t model_rows);
  void linear(std::string_view name, int64_t m, const MatrixShape& w) { linear(name, m, w, m); }
  // m rows over n_matrices matrices that have rows.
  void grouped(
      std::string_view name, OpKind kind, int64_t m, int64_t n_matrices, const MatrixShape& w);
  void embed(std::string_view name, int64_t m, int64_t n_gathered, int64_t width);
  void norm(std::string_view name, int64_t n_rows, int64_t d, bool with_residual);
  void residual_add(std::string_view name, int64_t m, int64_t d);
  void scale(std::string_view name, int64_t m, int64_t d);
  // m rows of n elements read, of n_written written.
  void copy(std::string_view name, int64_t m, int64_t n, int64_t n_written);
  void copy(std::string_view name, int64_t m, int64_t n) { copy(name, m, n, n); }

  std::vector<PlannedOp> take() { return std::move(ops_); }

 private:
  const StepFormats& formats_;
  bool copies_;
  std::vector<PlannedOp> ops_;
};

}  // namespace testbed::plan
