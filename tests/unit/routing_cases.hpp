// Logits and rules that routers are tested with, whatever they run on.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/base/routing.hpp"

namespace testbed {

inline Tensor tensor_of(const std::vector<float>& values, Shape shape) {
  Tensor t(DType::F32, shape);
  CHECK(t.n_elements() == static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), t.as<float>());
  return t;
}

// Quarters: equal ones are ties in any arithmetic, unequal ones are far apart.
inline Tensor quarters(int64_t m, int64_t n, unsigned seed) {
  Tensor t(DType::F32, {m, n});
  std::mt19937 generator(seed);
  for (int64_t i = 0; i < m * n; ++i) {
    t.as<float>()[i] = static_cast<float>(static_cast<int>(generator() % 33) - 16) / 4;
  }
  return t;
}

constexpr RouterScore router_scores[] = {
    RouterScore::softmax, RouterScore::top_k_softmax, RouterScore::sigmoid};

// expect(params) for every rule over 16 experts in 4 groups, without and with biases and scales.
template <typename Expect>
void for_every_rule(Expect&& expect) {
  const Tensor bias = quarters(1, 16, 2);
  const Tensor scale = tensor_of({1, 2, 4, 1, .5, .5, 1, 8, 1, 1, 2, 1, 1, 4, 1, .25}, {16});
  for (const RouterScore score : router_scores) {
    for (const bool renormalise : {false, true}) {
      for (const int64_t top_k : {1, 4, 8}) {
        for (const int64_t top_k_groups : {2, 3, 4}) {
          for (const GroupScore group_score : {GroupScore::maximum, GroupScore::top2_sum}) {
            RoutingParams params{.rule = {.top_k = top_k,
                                          .score = score,
                                          .renormalise = renormalise,
                                          .scale = 2.5,
                                          .n_groups = 4,
                                          .top_k_groups = top_k_groups,
                                          .group_score = group_score}};
            expect(params);
            params.selection_bias = bias;
            expect(params);
            params.expert_scale = scale;
            expect(params);
          }
        }
      }
    }
  }
}

}  // namespace testbed
