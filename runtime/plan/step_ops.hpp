// The ops of one step on one rank, from shapes: what the rank would report to its CostSink. The
// costs are those of kernels/cost.hpp; tests/e2e/plan_test.py compares them with a run's record.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/base/op_cost.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/model/model.hpp"
#include "runtime/plan/formats.hpp"

namespace testbed::plan {

// A batch of equal sequences: each has n_cached tokens in the cache and adds n_new.
struct StepShape {
  int64_t batch = 1;
  int64_t n_new = 1;     // 1: decode
  int64_t n_cached = 0;  // decode at context S: S - 1, and its own token is the S-th
  int64_t n_tokens() const { return batch * n_new; }
};

inline StepShape decode_shape(int64_t batch, int64_t context) {
  return {.batch = batch, .n_new = 1, .n_cached = context - 1};
}
inline StepShape prefill_shape(int64_t batch, int64_t prompt_tokens) {
  return {.batch = batch, .n_new = prompt_tokens, .n_cached = 0};
}

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

// In the order in which they first run. One pass of the whole batch (no microbatches) through the
// layers of position's rank.
std::vector<PlannedOp> step_ops(const ModelConfig& model,
                                const ShardPosition& position,
                                const StepShape& shape,
                                const StepFormats& formats);

OpCost total_cost(const std::vector<PlannedOp>& ops);

}  // namespace testbed::plan
