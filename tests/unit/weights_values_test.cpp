// Conversions of elements, and the values of random weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "runtime/weights/convert.hpp"
#include "runtime/weights/weight_source.hpp"
#include "tests/unit/weights_families.hpp"
#include "tests/unit/weights_toy.hpp"

namespace testbed {
namespace {

using namespace test;
using testing::HasSubstr;

TEST(Convert, f16_and_f32_agree_for_every_bit_pattern) {
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const f16 half{static_cast<uint16_t>(bits)};
    const float wide = to_f32(half);
    float converted = 0;
    convert_elements(DType::F16,
                     reinterpret_cast<const std::byte*>(&half),
                     1,
                     DType::F32,
                     reinterpret_cast<std::byte*>(&converted));
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(converted)) << bits;
      ASSERT_TRUE(std::isnan(to_f32(to_f16(wide)))) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide), std::bit_cast<uint32_t>(converted)) << bits;
      ASSERT_EQ(to_f16(wide).bits, bits);
    }
  }
}

TEST(Convert, f16_rounds_to_nearest_even) {
  EXPECT_EQ(to_f16(1.0F + 0x1p-11F).bits, to_f16(1.0F).bits);
  EXPECT_EQ(to_f16(1.0F + 0x3p-11F).bits, to_f16(1.0F + 0x2p-10F).bits);
  EXPECT_EQ(to_f16(65519.0F).bits, 0x7bffU);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7c00U);
  EXPECT_EQ(to_f16(-1e9F).bits, 0xfc00U);
  EXPECT_EQ(to_f16(0x1p-25F).bits, 0U);
  EXPECT_EQ(to_f16(0x1.8p-25F).bits, 1U);
  EXPECT_EQ(to_f16(0x3p-25F).bits, 2U);
}

TEST(RandomWeights, values_have_the_promised_distribution_and_dtype) {
  ModelConfig config = fixture_config("qwen2");
  config.vocab_size = 4096;
  const auto source = make_random_weights(config, 1);
  EXPECT_EQ(source->description(), "random(seed=1)");
  EXPECT_FALSE(source->find("lm_head.weight"));
  const Tensor t = read_all(*source, "model.embed_tokens.weight", DType::F32);
  double sum = 0;
  double squares = 0;
  const auto n = static_cast<double>(t.n_elements());
  for (int64_t i = 0; i < t.n_elements(); ++i) {
    const float v = t.as<float>()[i];
    ASSERT_EQ(to_f32(to_bf16(v)), v);
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  // Standard errors for n = 524288: 0.02/sqrt(n) of the mean, about 0.02/sqrt(2n) of the deviation;
  // five of each.
  EXPECT_NEAR(sum / n, 0.0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
  const Tensor norm = read_all(*source, "model.norm.weight", DType::F32);
  for (int64_t i = 0; i < norm.n_elements(); ++i) EXPECT_NEAR(norm.as<float>()[i], 1.0F, 0.05F);
}

double mean_of(const WeightSource& source, const std::string& name) {
  const Tensor t = read_all(source, name, DType::F32);
  double sum = 0;
  for (int64_t i = 0; i < t.n_elements(); ++i) sum += static_cast<double>(t.as<float>()[i]);
  return sum / static_cast<double>(t.n_elements());
}

// Each within its largest deviation from the mean, 0.02 * sqrt(6) of a triangular distribution.
TEST(RandomWeights, factors_are_around_one_and_terms_around_zero) {
  constexpr double most = 0.05;
  const auto gemma3 = make_random_weights(gemma3_config(), 1);
  for (const std::string norm : {"model.norm.weight", "model.layers.0.self_attn.q_norm.weight"})
    EXPECT_NEAR(mean_of(*gemma3, norm), 0.0, most) << norm;  // multiplies by 1 + w
  const auto gemma4 = make_random_weights(gemma4_moe_config(), 1);
  for (const std::string factor : {"model.norm.weight",
                                   "model.layers.0.layer_scalar",
                                   "model.layers.1.mlp.gate.input_scale",
                                   "model.layers.1.mlp.gate.expert_scale"})
    EXPECT_NEAR(mean_of(*gemma4, factor), 1.0, most) << factor;
  const auto gpt_oss = make_random_weights(gpt_oss_config(), 1);
  for (const std::string term : {"model.layers.0.self_attn.sinks",
                                 "model.layers.0.mlp.gate.bias",
                                 "model.layers.0.mlp.experts.2.up_proj.bias"})
    EXPECT_NEAR(mean_of(*gpt_oss, term), 0.0, most) << term;
}

TEST(RandomWeights, depend_on_seed_and_name_only) {
  ModelConfig config = fixture_config("llama_5layers");
  const auto a = make_random_weights(config, 1);
  const auto b = make_random_weights(config, 1);
  const auto other = make_random_weights(config, 2);
  config.n_layers = 2;
  const auto truncated = make_random_weights(config, 1);
  expect_same_model(config, *a, *b, DType::F32);
  expect_same_model(config, *a, *truncated, DType::F32);
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const Tensor first = read_all(*a, q, DType::F32);
  EXPECT_FALSE(same_bytes(first, read_all(*other, q, DType::F32)));
  EXPECT_FALSE(
      same_bytes(first, read_all(*a, "model.layers.1.self_attn.q_proj.weight", DType::F32)));
}

// Pins the values: a change would silently make every recorded random model another one.
TEST(RandomWeights, values_are_pinned) {
  ModelConfig config = toy_config();
  const auto source = make_random_weights(config, 0);
  const auto values = read_floats(*source, "lm_head.weight", {0, 1}, {0, 4});
  const auto norm = read_floats(*source, "model.norm.weight", {0, 1}, {0, 2});
  // Recomputed in Python from the generator's definition.
  const std::vector<float> expected = {
      0.006866031792014837F, 0.00014277758600655943F, 0.005942089017480612F, 0.025522053241729736F};
  EXPECT_EQ(values, expected);
  EXPECT_EQ(norm, (std::vector<float>{1.0053380727767944F, 1.0274641513824463F}));
}

TEST(RandomWeights, block_types_are_refused) {
  ModelConfig config = toy_config();
  config.stored_dtype = DType::Q8_0;
  EXPECT_THAT(weights_error([&] { make_random_weights(config, 0); }),
              HasSubstr("stored dtype q8_0 is not one of f32, f16, bf16"));
}

// The 2^32 boundary inside a tensor: one row of 2^20 columns, 4097 rows.
TEST(RandomWeights, indices_above_32_bits) {
  ModelConfig config = toy_config();
  config.vocab_size = 4097;
  config.d_model = int64_t{1} << 20;
  const auto source = make_random_weights(config, 0);
  const auto across = read_floats(*source, "lm_head.weight", {4095, 4097}, {0, config.d_model});
  const auto above = read_floats(*source, "lm_head.weight", {4096, 4097}, {0, 64});
  const auto start = read_floats(*source, "lm_head.weight", {0, 1}, {0, 64});
  const auto half = across.begin() + config.d_model;
  EXPECT_TRUE(std::equal(above.begin(), above.end(), half));
  EXPECT_NE(above, start);
}

}  // namespace
}  // namespace testbed
