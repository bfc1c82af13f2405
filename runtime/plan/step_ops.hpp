// The ops of one step on one rank, from shapes: what the rank would report to its CostSink. The
// costs are those of kernels/cost.hpp; tests/e2e/plan_test.py compares them with a run's record.
// Exact, but for what depends on the tokens: which rank gathers an embedding, which experts are
// chosen (step_experts.cpp).
#pragma once

#include <string_view>
#include <vector>

#include "kernels/base/op_cost.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/model/model.hpp"
#include "runtime/plan/formats.hpp"
#include "runtime/plan/step_shape.hpp"

namespace testbed::plan {

struct PlannedOp {
  std::string_view name;
  OpKind kind = OpKind::copy;
  int64_t calls = 0;
  OpCost cost;  // of all calls
};

struct StepFormats {
  NumberFormat weights = bf16_format;
  DType activation = DType::BF16;  // and of the KV cache
};

// In the order in which they first run. One pass of the whole batch (no microbatches, prompts in
// one chunk) through the layers of position's rank.
std::vector<PlannedOp> step_ops(const ModelConfig& model,
                                const ShardPosition& position,
                                const StepShape& shape,
                                const StepFormats& formats);

OpCost total_cost(const std::vector<PlannedOp>& ops);

}  // namespace testbed::plan
