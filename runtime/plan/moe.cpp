#include "runtime/plan/moe.hpp"

#include <cmath>

namespace testbed::plan {

double expected_experts(int64_t n_experts, int64_t top_k, double n_tokens) {
  const auto e = static_cast<double>(n_experts);
  return e * (1.0 - std::pow(1.0 - static_cast<double>(top_k) / e, n_tokens));
}

double moe_weight_bytes(
    double always, double per_expert, int64_t n_experts, int64_t top_k, double n_tokens) {
  return always + per_expert * expected_experts(n_experts, top_k, n_tokens);
}

}  // namespace testbed::plan
