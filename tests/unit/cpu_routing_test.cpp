// The router's choice against a naive one in double: every rule, with ties, groups, biases and
// values that overflow; and the draws of a device without data.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/routing.hpp"
#include "kernels/sim/sim_device.hpp"
#include "tests/unit/routing_cases.hpp"
#include "tests/unit/tolerance.hpp"

namespace testbed::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Choice {
  Tensor ids;
  Tensor weights;
  Choice(int64_t m, int64_t top_k) : ids(DType::I32, {m, top_k}), weights(DType::F32, {m, top_k}) {}
  int32_t id(int64_t i) const { return ids.as<int32_t>()[i]; }
  float weight(int64_t i) const { return weights.as<float>()[i]; }
};

Choice choose(TensorView logits, const RoutingParams& params, int n_threads = 1) {
  ThreadPool pool(n_threads, false);
  Choice choice(logits.n_rows(), params.rule.top_k);
  route(logits, params, choice.ids, choice.weights, pool);
  return choice;
}

// Indices of values, largest first, the lowest of equals first.
std::vector<size_t> by_value(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(
      order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

std::vector<double> softmax(std::vector<double> x) {
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v);
  for (double& v : x) v /= sum;
  return x;
}

// Which experts the rule's groups leave.
std::vector<bool> left_by_groups(const std::vector<double>& preference, const RoutingRule& rule) {
  const size_t size = preference.size() / static_cast<size_t>(rule.n_groups);
  std::vector<double> scores;
  for (size_t first = 0; first < preference.size(); first += size) {
    const auto begin = preference.begin() + static_cast<std::ptrdiff_t>(first);
    std::vector<double> group(begin, begin + static_cast<std::ptrdiff_t>(size));
    std::sort(group.rbegin(), group.rend());
    scores.resize(scores.size() + 1,
                  rule.group_score == GroupScore::maximum ? group[0] : group[0] + group[1]);
  }
  std::vector<bool> left(preference.size(), false);
  const std::vector<size_t> groups = by_value(scores);
  for (size_t g = 0; g < static_cast<size_t>(rule.top_k_groups); ++g) {
    for (size_t i = 0; i < size; ++i) left[groups[g] * size + i] = true;
  }
  return left;
}

struct Weighted {
  size_t id;
  double weight;
};

std::vector<Weighted> naive(const float* logits, int64_t n_experts, const RoutingParams& params) {
  const RoutingRule& rule = params.rule;
  std::vector<double> scores(logits, logits + n_experts);
  if (rule.score == RouterScore::softmax) scores = softmax(scores);
  if (rule.score == RouterScore::sigmoid) {
    for (double& s : scores) s = 1 / (1 + std::exp(-s));
  }
  std::vector<double> preference = scores;
  for (size_t e = 0; e < preference.size() && !params.selection_bias.empty(); ++e)
    preference[e] += params.selection_bias.as<float>()[e];
  const std::vector<bool> left = left_by_groups(preference, rule);
  for (size_t e = 0; e < preference.size(); ++e) {
    if (!left[e]) preference[e] = -std::numeric_limits<double>::infinity();
  }
  std::vector<size_t> chosen = by_value(preference);
  chosen.resize(static_cast<size_t>(rule.top_k));
  std::sort(chosen.begin(), chosen.end());
  std::vector<double> weights;
  for (const size_t id : chosen) weights.insert(weights.end(), scores[id]);
  if (rule.score == RouterScore::top_k_softmax) weights = softmax(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] *= rule.scale / (rule.renormalise ? sum : 1.0);
    if (!params.expert_scale.empty()) weights[i] *= params.expert_scale.as<float>()[chosen[i]];
  }
  std::vector<Weighted> result;
  for (const size_t i : by_value(weights))
    result.insert(result.end(), Weighted{chosen[i], weights[i]});
  return result;
}

// The exponent is exact here (quarters), exp takes 2 roundings, each sum of n terms n, quotients
// and products 5.
void expect_naive(TensorView logits, const RoutingParams& params) {
  const int64_t n_experts = logits.shape()[1];
  const int64_t top_k = params.rule.top_k;
  const Choice got = choose(logits, params);
  const double error = static_cast<double>(n_experts + top_k + 7) * tolerance::f32_rounding;
  for (int64_t row = 0; row < logits.n_rows(); ++row) {
    const std::vector<Weighted> expected =
        naive(logits.as<float>() + row * n_experts, n_experts, params);
    for (int64_t i = 0; i < top_k; ++i) {
      const Weighted& e = expected[static_cast<size_t>(i)];
      EXPECT_EQ(got.id(row * top_k + i), static_cast<int32_t>(e.id)) << "row " << row;
      EXPECT_NEAR(got.weight(row * top_k + i), e.weight, e.weight * error) << "row " << row;
    }
  }
}

TEST(CpuRouting, every_rule_is_the_naive_choice) {
  const Tensor logits = quarters(60, 16, 1);
  for_every_rule([&](const RoutingParams& params) { expect_naive(logits, params); });
}

TEST(CpuRouting, ties_go_to_the_lowest_id) {
  const Tensor logits = tensor_of({1, 1, 1, 1, 1, 1, 0, 2, 1, 2, 1, 2}, {2, 6});
  const Choice choice = choose(logits, {.rule = {.top_k = 3, .renormalise = true}});
  EXPECT_EQ(choice.id(0), 0);
  EXPECT_EQ(choice.id(1), 1);
  EXPECT_EQ(choice.id(2), 2);
  EXPECT_EQ(choice.id(3), 1);
  EXPECT_EQ(choice.id(4), 3);
  EXPECT_EQ(choice.id(5), 5);
}

TEST(CpuRouting, the_bias_chooses_and_does_not_weigh) {
  const Tensor logits = tensor_of({0, 3, 0, 0}, {1, 4});
  const Tensor bias = tensor_of({0, 0, 5, 0}, {4});
  const Choice choice =
      choose(logits, {.rule = {.top_k = 2, .score = RouterScore::sigmoid}, .selection_bias = bias});
  EXPECT_EQ(choice.id(0), 1);  // of the larger weight, though chosen second
  EXPECT_EQ(choice.id(1), 2);
  EXPECT_FLOAT_EQ(choice.weight(1), 0.5F);
}

TEST(CpuRouting, experts_of_dropped_groups_are_not_chosen_even_before_negative_ones) {
  const Tensor logits = tensor_of({0, 0, 0, 0, 0, 0}, {1, 6});
  const Tensor bias = tensor_of({.1F, .1F, .1F, 9, 9, -20}, {6});
  const Choice choice = choose(logits,
                               {.rule = {.top_k = 3,
                                         .score = RouterScore::sigmoid,
                                         .n_groups = 2,
                                         .top_k_groups = 1,
                                         .group_score = GroupScore::top2_sum},
                                .selection_bias = bias});
  EXPECT_EQ(choice.id(0), 3);
  EXPECT_EQ(choice.id(1), 4);
  EXPECT_EQ(choice.id(2), 5);
}

TEST(CpuRouting, large_logits_do_not_overflow) {
  const Tensor logits = tensor_of({1e30F, 0, -1e30F, 1e30F}, {1, 4});
  for (const RouterScore score :
       {RouterScore::softmax, RouterScore::top_k_softmax, RouterScore::sigmoid}) {
    const Choice choice =
        choose(logits, {.rule = {.top_k = 2, .score = score, .renormalise = true}});
    EXPECT_EQ(choice.id(0), 0);
    EXPECT_EQ(choice.id(1), 3);
    EXPECT_EQ(choice.weight(0), 0.5F);
    EXPECT_EQ(choice.weight(1), 0.5F);
  }
}

TEST(CpuRouting, D22_a_row_with_nan_is_noticed_and_others_are_not_touched) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity}) {
      if (score == RouterScore::sigmoid && bad == infinity) continue;  // its sigmoid is 1
      const Tensor clean = quarters(2, 8, 3);
      const Tensor logits = quarters(2, 8, 3);
      logits.as<float>()[5] = bad;
      const RoutingParams params{
          .rule = {.top_k = 8, .score = score, .n_groups = 2, .top_k_groups = 2}};
      const Choice choice = choose(logits, params);
      const Choice expected = choose(clean, params);
      std::set<int32_t> ids;
      bool finite = true;
      for (int64_t i = 0; i < 8; ++i) {
        ids.insert(choice.id(i));
        finite = finite && std::isfinite(choice.weight(i));
        EXPECT_EQ(choice.id(8 + i), expected.id(8 + i));
        EXPECT_EQ(choice.weight(8 + i), expected.weight(8 + i));
      }
      EXPECT_FALSE(finite);
      EXPECT_EQ(ids.size(), 8U);
      EXPECT_EQ(*ids.begin(), 0);
      EXPECT_EQ(*ids.rbegin(), 7);
    }
  }
}

TEST(CpuRouting, rows_depend_on_themselves_alone) {
  const Tensor logits = quarters(100, 64, 4);
  const RoutingParams params{.rule = {.top_k = 6, .renormalise = true}};
  const Choice one = choose(logits, params, 1);
  const Choice three = choose(logits, params, 3);
  for (int64_t i = 0; i < 600; ++i) {
    EXPECT_EQ(one.id(i), three.id(i));
    EXPECT_EQ(one.weight(i), three.weight(i));
  }
  const Choice none = choose(Tensor(DType::F32, {0, 64}), params);
  EXPECT_TRUE(none.ids.empty());
}

// Each of 1000 rows draws 4 of 16: an expert is in 250 of them, with a deviation of
// sqrt(1000 * 1/4 * 3/4) = 13.7; six of them leave no chance failure.
TEST(SimRouting, draws_distinct_experts_uniformly_by_key) {
  const DeviceSpec spec{.memory_bytes_per_s = 1e12, .peak_flops = {{MathType::f32, 1e12}}};
  SimClock clock;
  SimDevice device(spec, clock, DType::F32, 1);
  SimDevice other(spec, clock, DType::F32, 2);
  std::vector<uint64_t> keys(1000);
  std::iota(keys.begin(), keys.end(), uint64_t{77});
  const Tensor logits = device.allocate(DType::F32, {1000, 16});
  const RoutingParams params{.rule = {.top_k = 4}, .row_keys = keys};
  const Choice choice(1000, 4);
  const Choice again(1000, 4);
  device.route(logits, params, choice.ids, choice.weights);
  other.route(logits, params, again.ids, again.weights);
  EXPECT_GT(clock.now_s(), 0.0);
  std::vector<double> count(16, 0.0);
  for (int64_t i = 0; i < 4000; ++i) {
    EXPECT_EQ(choice.id(i), again.id(i));
    EXPECT_EQ(choice.weight(i), 0.25F);
    EXPECT_TRUE(i % 4 == 0 || choice.id(i) > choice.id(i - 1));
    count.at(static_cast<size_t>(choice.id(i))) += 1;
  }
  for (const double n : count) EXPECT_NEAR(n, 250, 6 * 13.7);
}

}  // namespace
}  // namespace testbed::cpu
