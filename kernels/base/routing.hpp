// How a router chooses experts: plain data, read by the model's configuration and by the op.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/base/tensor.hpp"

namespace testbed {

enum class RouterScore : uint8_t {
  softmax,        // of all logits, then top-k
  top_k_softmax,  // top-k of the logits, then softmax of the chosen
  sigmoid,        // then top-k
};
enum class GroupScore : uint8_t { maximum, top2_sum };

// The weight of a chosen expert is its score [/ sum of the chosen] * scale [* its own scale]. Ties
// go to the lowest id. The bias counts for the choice (and the groups) only.
struct RoutingRule {
  int64_t top_k = 1;
  RouterScore score = RouterScore::softmax;
  bool renormalise = false;
  double scale = 1.0;
  int64_t n_groups = 1;
  int64_t top_k_groups = 1;  // only experts of the best groups may be chosen
  GroupScore group_score = GroupScore::maximum;
  bool operator==(const RoutingRule&) const = default;
};

// E (1 - (1 - k/E)^B): how many of E experts B tokens touch on average that choose k each, evenly.
inline double expected_experts(int64_t n_experts, int64_t top_k, double n_tokens) {
  const auto e = static_cast<double>(n_experts);
  return e * (1.0 - std::pow(1.0 - static_cast<double>(top_k) / e, n_tokens));
}

struct RoutingParams {
  RoutingRule rule;
  TensorView selection_bias;  // F32 [n_experts] or empty
  TensorView expert_scale;    // F32 [n_experts] or empty
  // What a device without data draws by, one per row: equal keys choose equal experts, on every
  // rank.
  std::span<const uint64_t> row_keys;  // [m]
};

enum class Activation : uint8_t {
  silu,
  gelu_tanh,
  clamped_swiglu,  // gpt_oss: g sigmoid(1.702 g) (u + 1) with g <= 7 and -7 <= u <= 7
};

}  // namespace testbed
