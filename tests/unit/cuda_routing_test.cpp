// The router's choice on the device against the CPU's: the same experts, weights within rounding.
#include <gtest/gtest.h>

#include <set>

#include "kernels/cpu/routing.hpp"
#include "tests/unit/cuda_rows_support.hpp"
#include "tests/unit/routing_cases.hpp"

namespace testbed::cuda {
namespace {

struct Choice {
  Tensor ids;
  Tensor weights;
  Choice(int64_t m, int64_t top_k) : ids(DType::I32, {m, top_k}), weights(DType::F32, {m, top_k}) {}
};

Choice on_cpu(TensorView logits, const RoutingParams& params) {
  Choice choice(logits.n_rows(), params.rule.top_k);
  cpu::route(logits, params, choice.ids, choice.weights, pool());
  return choice;
}

Choice on_device(TensorView logits, const RoutingParams& params) {
  Queue queue;
  Choice choice(logits.n_rows(), params.rule.top_k);
  const OnDevice device_logits(logits);
  const OnDevice bias(params.selection_bias);
  const OnDevice expert_scale(params.expert_scale);
  const OnDevice ids(choice.ids);
  const OnDevice weights(choice.weights);
  RoutingParams device_params = params;
  if (!params.selection_bias.empty()) device_params.selection_bias = bias;
  if (!params.expert_scale.empty()) device_params.expert_scale = expert_scale;
  route(queue, device_logits, device_params, ids, weights);
  choice.ids = ids.download(queue);
  choice.weights = weights.download(queue);
  return choice;
}

// On either side exp takes 2 roundings, each sum of n terms n, quotients and products 5 (as in
// cpu_routing_test.cpp).
void expect_same_choice(TensorView logits, const RoutingParams& params) {
  const Choice want = on_cpu(logits, params);
  const Choice got = on_device(logits, params);
  const auto n_terms = static_cast<double>(logits.shape()[-1] + params.rule.top_k);
  for (int64_t i = 0; i < want.ids.n_elements(); ++i) {
    EXPECT_EQ(got.ids.as<int32_t>()[i], want.ids.as<int32_t>()[i]) << "choice " << i;
    const double weight = want.weights.as<float>()[i];
    const double error = weight * 2 * (n_terms + 7) * tolerance::f32_rounding;
    EXPECT_NEAR(got.weights.as<float>()[i], weight, error) << "choice " << i;
  }
}

TEST(CudaRouting, every_rule) {
  const Tensor logits = quarters(13, 16, 1);
  for_every_rule([&](const RoutingParams& params) { expect_same_choice(logits, params); });
}

// Mixtral, gpt-oss, Qwen3, DeepSeek-V3; and the most that a warp takes.
TEST(CudaRouting, sizes_of_models) {
  struct Case {
    int64_t n_experts;
    RoutingRule rule;
  };
  const Case cases[] = {
      {8, {.top_k = 2, .score = RouterScore::top_k_softmax}},
      {32, {.top_k = 4, .score = RouterScore::top_k_softmax}},
      {128, {.top_k = 8, .score = RouterScore::softmax, .renormalise = true}},
      {256,
       {.top_k = 8,
        .score = RouterScore::sigmoid,
        .renormalise = true,
        .scale = 2.5,
        .n_groups = 8,
        .top_k_groups = 4,
        .group_score = GroupScore::top2_sum}},
      {512, {.top_k = 32, .score = RouterScore::softmax}},
      {33, {.top_k = 32, .score = RouterScore::sigmoid}},
      {1, {.top_k = 1, .score = RouterScore::softmax}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.n_experts);
    const Tensor logits = random(DType::F32, {9, c.n_experts}, 1, 2.0);
    expect_same_choice(logits, {.rule = c.rule});
    const Tensor bias = random(DType::F32, {c.n_experts}, 2, 0.1);
    expect_same_choice(logits, {.rule = c.rule, .selection_bias = bias});
  }
}

TEST(CudaRouting, ties_go_to_the_lowest_id) {
  for (const int64_t n_experts : {6, 64, 100}) {
    const Tensor logits(DType::F32, {2, n_experts});
    logits.as<float>()[n_experts + n_experts - 1] = 2.0F;
    for (const RouterScore score : router_scores) {
      expect_same_choice(logits, {.rule = {.top_k = 3, .score = score}});
      expect_same_choice(logits,
                         {.rule = {.top_k = 3, .score = score, .n_groups = 2, .top_k_groups = 1}});
    }
  }
}

TEST(CudaRouting, large_logits_do_not_overflow) {
  const Tensor logits = tensor_of({1e30F, 0, -1e30F, 1e30F}, {1, 4});
  for (const RouterScore score : router_scores) {
    const Choice choice =
        on_device(logits, {.rule = {.top_k = 2, .score = score, .renormalise = true}});
    EXPECT_EQ(choice.ids.as<int32_t>()[0], 0);
    EXPECT_EQ(choice.ids.as<int32_t>()[1], 3);
    EXPECT_EQ(choice.weights.as<float>()[0], 0.5F);
    EXPECT_EQ(choice.weights.as<float>()[1], 0.5F);
  }
}

// The same ids as the reference's, all of them valid, and NaN where it has NaN.
TEST(CudaRouting, D22_nan_and_infinity_end_up_where_the_reference_has_them) {
  for (const RouterScore score : router_scores) {
    for (const float bad : {nan, infinity, -infinity}) {
      for (const int64_t top_k : {3, 8}) {
        for (const int64_t n_bad : {1, 6, 8}) {
          const Tensor logits = quarters(2, 8, 3);
          for (int64_t i = 0; i < n_bad; ++i) logits.as<float>()[7 - i] = bad;
          for (const int64_t top_k_groups : {1, 2}) {
            if (top_k > 4 * top_k_groups) continue;
            const RoutingParams params{
                .rule = {
                    .top_k = top_k, .score = score, .n_groups = 2, .top_k_groups = top_k_groups}};
            const Choice want = on_cpu(logits, params);
            const Choice got = on_device(logits, params);
            for (int64_t i = 0; i < 2 * top_k; ++i) {
              EXPECT_EQ(got.ids.as<int32_t>()[i], want.ids.as<int32_t>()[i]) << "choice " << i;
              EXPECT_EQ(std::isnan(got.weights.as<float>()[i]),
                        std::isnan(want.weights.as<float>()[i]));
            }
          }
        }
      }
    }
  }
}

TEST(CudaRouting, no_rows_are_no_work) {
  const Choice none = on_device(Tensor(DType::F32, {0, 64}), {.rule = {.top_k = 6}});
  EXPECT_TRUE(none.ids.empty());
}

}  // namespace
}  // namespace testbed::cuda
