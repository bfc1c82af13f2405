// The router's choice for every token of the mixture-of-experts fixtures: the stored logits must
// give the stored experts and weights (tests/fixtures/models; the families' rules by hand).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/routing.hpp"
#include "runtime/weights/safetensors_file.hpp"
#include "tests/unit/tolerance.hpp"

namespace testbed::cpu {
namespace {

struct Family {
  std::string name;
  RoutingRule rule;
  std::string bias = {};              // tensor of layer {}: what is added for the choice
  std::string scale = {};             // tensor of layer {}: a factor per expert
  bool stores_probabilities = false;  // instead of logits
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {.name = "mixtral", .rule = {.top_k = 2, .renormalise = true}},
      {.name = "qwen3_moe", .rule = {.top_k = 4, .renormalise = true}},
      {.name = "gpt_oss", .rule = {.top_k = 2, .score = RouterScore::top_k_softmax}},
      {.name = "deepseek_v2", .rule = {.top_k = 4, .scale = 1.5, .n_groups = 4, .top_k_groups = 2}},
      {.name = "deepseek_v3",
       .rule = {.top_k = 4,
                .score = RouterScore::sigmoid,
                .renormalise = true,
                .scale = 2.5,
                .n_groups = 4,
                .top_k_groups = 2,
                .group_score = GroupScore::top2_sum},
       .bias = "mlp.gate.e_score_correction_bias"},
      {.name = "gemma4_moe",
       .rule = {.top_k = 2, .renormalise = true},
       .scale = "router.per_expert_scale",
       .stores_probabilities = true}};
  return all;
}

std::string file_of(const Family& family, const std::string& name) {
  return std::string(TESTBED_SOURCE_DIR) + "/tests/fixtures/models/" + family.name + "/" + name;
}

// A tensor in F32, from F32 or BF16.
Tensor in_f32(const SafetensorsTensor& from) {
  const bool narrow = from.dtype == "BF16";
  const size_t n = from.data.size() / (narrow ? 2 : 4);
  Tensor t(DType::F32, Shape(from.shape));
  EXPECT_EQ(t.n_elements(), static_cast<int64_t>(n));
  for (size_t i = 0; i < n; ++i) {
    bf16 half;
    if (narrow) {
      std::memcpy(&half, from.data.data() + 2 * i, 2);
      t.as<float>()[i] = to_f32(half);
    } else {
      std::memcpy(t.as<float>() + i, from.data.data() + 4 * i, 4);
    }
  }
  return t;
}

Tensor of_layer(const Family& family, const std::string& layer, const std::string& tensor) {
  if (tensor.empty()) return {};
  const SafetensorsFile model = SafetensorsFile::open(file_of(family, "model.safetensors"));
  return in_f32(model.tensors().at("model.layers." + layer + "." + tensor));
}

// Both sides are f32: each takes |logit - maximum| < 16 roundings into exp's argument, 2 in exp, 16
// in the sum, 8 in quotients, sums of the chosen and products.
constexpr double weight_error = 2 * (16 + 2 + 16 + 8) * tolerance::f32_rounding;

// Returns the number of rows. prefix: "case0.layer1.".
int64_t check_layer(const Family& family,
                    const SafetensorsFile& expected,
                    const std::string& prefix) {
  SCOPED_TRACE(family.name + " " + prefix);
  const Tensor scores = in_f32(expected.tensors().at(prefix + "router_scores"));
  const Tensor weights = in_f32(expected.tensors().at(prefix + "router_weights"));
  const auto ids = expected.tensors().at(prefix + "router_ids");
  if (family.stores_probabilities) {
    for (int64_t i = 0; i < scores.n_elements(); ++i) {
      scores.as<float>()[i] = std::log(scores.as<float>()[i]);
    }
  }
  const size_t at = prefix.find("layer") + 5;
  const std::string layer = prefix.substr(at, prefix.size() - 1 - at);
  const Tensor bias = of_layer(family, layer, family.bias);
  const Tensor scale = of_layer(family, layer, family.scale);
  ThreadPool pool(2, false);
  const Tensor got_ids(DType::I32, weights.shape());
  const Tensor got_weights(DType::F32, weights.shape());
  route(scores,
        {.rule = family.rule, .selection_bias = bias, .expert_scale = scale},
        got_ids,
        got_weights,
        pool);
  EXPECT_EQ(static_cast<int64_t>(ids.data.size()), got_ids.n_bytes());
  EXPECT_EQ(std::memcmp(ids.data.data(), got_ids.data(), ids.data.size()), 0);
  for (int64_t i = 0; i < weights.n_elements(); ++i) {
    const double w = weights.as<float>()[i];
    EXPECT_NEAR(got_weights.as<float>()[i], w, std::abs(w) * weight_error);
  }
  return scores.shape()[0];
}

TEST(CpuRoutingFixtures, stored_logits_give_the_stored_experts_and_weights) {
  for (const Family& family : families()) {
    const SafetensorsFile expected = SafetensorsFile::open(file_of(family, "expected.safetensors"));
    const std::string suffix = "router_scores";
    int64_t n_rows = 0;
    for (const auto& [name, tensor] : expected.tensors()) {
      if (!name.ends_with(suffix)) continue;
      n_rows += check_layer(family, expected, name.substr(0, name.size() - suffix.size()));
    }
    EXPECT_GT(n_rows, 400) << family.name;
  }
}

}  // namespace
}  // namespace testbed::cpu
