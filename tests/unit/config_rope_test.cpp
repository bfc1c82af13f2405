// Rope tables against those that transformers made (tests/fixtures/config/rope_tables.json: the
// rope.KIND.inv_freq and attention_scaling of the reference fixtures).
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/config/hf_rope.hpp"
#include "runtime/config/json_input.hpp"
#include "runtime/config/rope.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using nlohmann::json;
using test::config_error;
using test::file_text;
using test::fixture_path;

constexpr int64_t max_positions = 256;  // of every fixture

RopeConfig rope_of(const json& config) {
  return read_hf_rope(JsonObject(config, "config.json"), max_positions);
}
RopeConfig rope_of(const char* text) { return rope_of(json::parse(text)); }

TEST(ConfigRope, tables_match_transformers) {
  const json tables = json::parse(file_text(fixture_path("config/rope_tables.json")));
  ASSERT_EQ(tables.size(), 17U);
  for (const json& entry : tables) {
    SCOPED_TRACE(entry["fixture"].get<std::string>() + " " + entry["kind"].get<std::string>());
    const auto head_dim = entry["head_dim"].get<int64_t>();
    const RopeTable table =
        rope_table(rope_of(json{{"rope_parameters", entry["rope_parameters"]}}), head_dim);
    ASSERT_EQ(table.inv_freq.size(), entry["inv_freq"].size());
    for (size_t i = 0; i < table.inv_freq.size(); ++i) {
      const auto f64 = entry["inv_freq_f64"][i].get<double>();
      // Ten or so f64 operations and a pow that is within an ulp or two.
      EXPECT_NEAR(table.inv_freq[i], f64, 32 * 0x1p-53 * f64);
      // The f32 table went through as many f32 operations.
      EXPECT_NEAR(table.inv_freq[i], entry["inv_freq"][i].get<double>(), 32 * 0x1p-24 * f64);
    }
    EXPECT_NEAR(table.multiplier, entry["attention_scaling"].get<double>(), 1e-15);
  }
}

TEST(ConfigRope, D10_spellings_are_identical) {
  const RopeConfig plain = rope_of(R"({"rope_theta": 500000.0})");
  EXPECT_EQ(plain.kind, RopeKind::plain);
  EXPECT_EQ(plain.theta, 500000.0);
  for (const char* text : {R"({"rope_theta": 500000, "rope_scaling": null})",
                           R"({"rope_theta": 500000, "rope_scaling": {"type": "default"}})",
                           R"({"rope_theta": 500000, "rope_scaling": {"rope_type": "default"}})",
                           R"({"rope_theta": 500000, "rope_scaling": {"rope_type": null}})",
                           R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})",
                           R"({"rope_parameters": {"rope_theta": 500000.0}})",
                           R"({"rope_parameters": null, "rope_theta": 500000.0})"})
    EXPECT_EQ(rope_of(text), plain) << text;

  const RopeConfig linear =
      rope_of(R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4}})");
  EXPECT_EQ(linear.kind, RopeKind::linear);
  EXPECT_EQ(linear.factor, 4.0);
  for (const char* text :
       {R"({"rope_scaling": {"rope_type": "linear", "factor": 4.0}})",
        R"({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 4.0}})",
        R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000}})",
        R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000},
            "rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 10000})"})
    EXPECT_EQ(rope_of(text), linear) << text;
}

TEST(ConfigRope, D10_llama3_parameters_are_read) {
  const RopeConfig rope = rope_of(R"({"rope_theta": 500000.0, "rope_scaling": {
      "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}})");
  EXPECT_EQ(rope.kind, RopeKind::llama3);
  EXPECT_EQ(rope.factor, 32.0);
  EXPECT_EQ(rope.low_freq_factor, 1.0);
  EXPECT_EQ(rope.high_freq_factor, 4.0);
  EXPECT_EQ(rope.original_max_positions, 8192);
  EXPECT_THAT(config_error([] {
                rope_of(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                    "low_freq_factor": 1.0, "high_freq_factor": 4.0}})");
              }),
              testing::HasSubstr("original_max_position_embeddings is missing"));
}

TEST(ConfigRope, D10_explicit_yarn_attention_factor_wins) {
  const char* base = R"({"rope_scaling": {"type": "yarn", "factor": 64.0,
      "original_max_position_embeddings": 4096}})";
  const double derived = 0.1 * std::log(64.0) + 1.0;
  EXPECT_NEAR(derived, 1.416, 0.001);
  EXPECT_NEAR(rope_table(rope_of(base), 128).multiplier, derived, 1e-15);
  json explicit_factor = json::parse(base);
  explicit_factor["rope_scaling"]["attention_factor"] = 1.0;
  EXPECT_EQ(rope_table(rope_of(explicit_factor), 128).multiplier, 1.0);
  // Also over mscale.
  explicit_factor["rope_scaling"]["mscale"] = 0.7;
  explicit_factor["rope_scaling"]["mscale_all_dim"] = 1.0;
  EXPECT_EQ(rope_table(rope_of(explicit_factor), 128).multiplier, 1.0);
  explicit_factor["rope_scaling"].erase("attention_factor");
  EXPECT_NEAR(rope_table(rope_of(explicit_factor), 128).multiplier,
              (0.07 * std::log(64.0) + 1) / derived,
              1e-15);
}

TEST(ConfigRope, D10_yarn_without_original_context_takes_the_maximum) {
  EXPECT_EQ(rope_of(R"({"rope_scaling": {"type": "yarn", "factor": 4.0}})").original_max_positions,
            max_positions);
}

TEST(ConfigRope, D10_unknown_type_and_contradictions_are_refused) {
  const auto error = [](const char* text) { return config_error([&] { rope_of(text); }); };
  EXPECT_THAT(error(R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})"),
              testing::AllOf(testing::HasSubstr("\"dynamic\""),
                             testing::HasSubstr("default, linear, llama3, yarn")));
  for (const char* text :
       {R"({"rope_scaling": {"factor": 2.0}})",
        R"({"rope_scaling": {"type": "linear"}})",
        R"({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}})",
        R"({"rope_scaling": {"type": 7, "factor": 2.0}})",
        R"({"rope_scaling": {"type": "linear", "factor": "2"}})",
        R"({"rope_scaling": "linear"})",
        R"({"rope_scaling": []})",
        R"({"rope_theta": "1e4"})",
        R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}})",
        R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0},
            "rope_scaling": {"type": "linear", "factor": 8.0}})",
        R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
        R"({"rope_parameters": {"partial_rotary_factor": 0.5}})",
        R"({"partial_rotary_factor": 0.5})",
        R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": 1}})",
        R"({"rope_scaling": {"type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 64.5}})"})
    EXPECT_NE(error(text), "") << text;
}

}  // namespace
}  // namespace testbed
