// What a ModelConfig says of each layer, what it counts, what it refuses, and how it is truncated.
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/config/model_readers.hpp"
#include "runtime/config/rope.hpp"
#include "runtime/weights/safetensors_file.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using test::file_text;
using test::fixture_models;
using test::fixture_path;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig fixture(const std::string& model) {
  return model_config_from_hf(fixture_path("models/" + model));
}

// Elements of all tensors of a fixture's weights.
int64_t stored_elements(const std::string& model) {
  int64_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fixture_path("models/" + model))) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file = SafetensorsFile::open(entry.path());
    for (const auto& [tensor_name, tensor] : file.tensors()) {
      int64_t elements = 1;
      for (const int64_t extent : tensor.shape) elements *= extent;
      n += elements;
    }
  }
  return n;
}

TEST(ModelConfig, n_parameters_is_what_the_fixtures_store) {
  for (const std::string& model : fixture_models())
    EXPECT_EQ(fixture(model).n_parameters(), stored_elements(model)) << model;
}

// expected.json has the tables that transformers made, in f64.
TEST(ModelConfig, rope_tables_of_every_layer_match_transformers) {
  for (const std::string& model : fixture_models()) {
    SCOPED_TRACE(model);
    const ModelConfig config = fixture(model);
    const auto ropes = nlohmann::json::parse(
        file_text(fixture_path("models/" + model + "/expected.json")))["rope"];
    for (int64_t i = 0; i < config.n_layers; ++i) {
      const bool is_full = config.layer(i).window == 0;
      const auto& expected = ropes.contains("all")
                                 ? ropes["all"]
                                 : ropes[is_full ? "full_attention" : "sliding_attention"];
      const RopeTable table = rope_table_of_layer(config, i);
      ASSERT_EQ(table.inv_freq.size(), expected["inv_freq_f64"].size());
      for (size_t pair = 0; pair < table.inv_freq.size(); ++pair) {
        const auto f64 = expected["inv_freq_f64"][pair].get<double>();
        // Ten or so f64 operations and a pow that is within an ulp or two.
        EXPECT_NEAR(table.inv_freq[pair], f64, 32 * 0x1p-53 * f64) << i << " " << pair;
      }
      EXPECT_NEAR(table.multiplier, expected["attention_scaling"].get<double>(), 1e-15);
      EXPECT_EQ(table.interleaved, config.mla.has_value());
    }
  }
}

TEST(ModelConfig, layers_of_gemma4) {
  const ModelConfig dense = fixture("gemma4_dense");  // 6 layers, the last 3 share; 2 and 5 full
  EXPECT_EQ(dense.layer(0),
            (LayerShape{.window = 16,
                        .n_kv_heads = 2,
                        .head_dim = 16,
                        .v_dim = 16,
                        .window_rope = true,
                        .kv_layer = 0,
                        .d_ff = 96}));
  EXPECT_EQ(dense.layer(4),
            (LayerShape{.window = 16,
                        .n_kv_heads = 2,
                        .head_dim = 16,
                        .v_dim = 16,
                        .window_rope = true,
                        .kv_layer = 1,
                        .d_ff = 192}));
  EXPECT_EQ(dense.layer(5),
            (LayerShape{.n_kv_heads = 2, .head_dim = 32, .v_dim = 32, .kv_layer = 2, .d_ff = 192}));
  const ModelConfig moe = fixture("gemma4_moe");
  EXPECT_EQ(moe.layer(3),
            (LayerShape{.n_kv_heads = 2,
                        .head_dim = 32,
                        .v_dim = 32,
                        .key_is_value = true,
                        .kv_layer = 3,
                        .d_ff = 96,
                        .has_experts = true}));
  EXPECT_EQ(moe.layer(0).n_kv_heads, 4);
  EXPECT_FALSE(moe.layer(0).key_is_value);
}

TEST(ModelConfig, layers_with_latent_attention_and_experts) {
  const ModelConfig v3 = fixture("deepseek_v3");
  EXPECT_EQ(v3.layer(0),
            (LayerShape{.n_kv_heads = 8, .head_dim = 24, .v_dim = 16, .kv_layer = 0, .d_ff = 128}));
  EXPECT_EQ(v3.layer(1),
            (LayerShape{.n_kv_heads = 8,
                        .head_dim = 24,
                        .v_dim = 16,
                        .kv_layer = 1,
                        .d_ff = 0,
                        .has_experts = true}));
  EXPECT_EQ(fixture("mixtral").layer(2).d_ff, 0);
  EXPECT_EQ(fixture("qwen3_moe").layer(0).d_ff, 128);
  EXPECT_EQ(fixture("qwen3_moe").layer(1).d_ff, 0);
}

TEST(ModelConfig, cached_elements_per_token) {
  EXPECT_EQ(fixture("deepseek_v3").cached(1).elements(), 32 + 8) << "latent and rotated key";
  EXPECT_EQ(fixture("deepseek_v3").cached(1).v_dim, 0);
  EXPECT_EQ(fixture("llama3_gqa").cached(0).elements(), 2 * (16 + 16));
  const ModelConfig dense = fixture("gemma4_dense");
  EXPECT_EQ(dense.cached(1).elements(), 2 * (16 + 16));
  EXPECT_EQ(dense.cached(5).elements(), 2 * (32 + 32)) << "of the full layer that it reads";
  EXPECT_EQ(fixture("gemma4_moe").cached(3).elements(), 2 * (32 + 32))
      << "the key is normed and rotated, the value is not: both are kept";
}

TEST(ModelConfig, scale_of_scores) {
  EXPECT_EQ(fixture("llama3_gqa").scale_of_scores(0), 0.25);
  EXPECT_EQ(fixture("gemma4_dense").scale_of_scores(2), 1.0);
  EXPECT_NEAR(fixture("gemma2").scale_of_scores(1), 1 / std::sqrt(24.0), 1e-16);
  const double mscale = 0.1 * 0.707 * std::log(4.0) + 1;
  EXPECT_NEAR(fixture("deepseek_v2").scale_of_scores(0), mscale * mscale / std::sqrt(24.0), 1e-16);
  ModelConfig plain = fixture("deepseek_v2");
  plain.rope.mscale_all_dim.reset();
  EXPECT_NEAR(plain.scale_of_scores(0), 1 / std::sqrt(24.0), 1e-16);
  // gpt_oss has YaRN too, but its factor is on cos and sin alone.
  EXPECT_EQ(fixture("gpt_oss").scale_of_scores(0), 0.25);
}

TEST(ModelConfig, active_parameters_leave_out_rows_and_experts) {
  const ModelConfig llama = fixture("llama3_gqa");
  EXPECT_EQ(llama.n_active_parameters(), llama.n_parameters() - llama.vocab_size * llama.d_model);
  const ModelConfig tied = fixture("smollm_tied");
  EXPECT_EQ(tied.n_active_parameters(), tied.n_parameters()) << "the head is the table";
  const ModelConfig mixtral = fixture("mixtral");  // 3 layers, 2 of 8 experts of [64, 96]
  EXPECT_EQ(mixtral.n_active_parameters(),
            mixtral.n_parameters() - 384 * 64 - int64_t{3} * 6 * 3 * 64 * 96);
  const ModelConfig gemma4 = fixture("gemma4_dense");
  EXPECT_EQ(gemma4.n_active_parameters(), gemma4.n_parameters() - 512 * 6 * 16)
      << "rows of per-layer embeddings";
}

TEST(ModelConfig, every_truncation_of_every_fixture_is_legal) {
  for (const std::string& model : fixture_models()) {
    const ModelConfig config = fixture(model);
    for (int64_t n = 1; n <= config.n_layers; ++n) {
      const ModelConfig cut = truncated_to(config, n);
      EXPECT_EQ(config_error([&] { validate(cut, "cut"); }), "") << model << " " << n;
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(cut.layer(i), config.layer(i)) << model << " " << n;
    }
  }
  EXPECT_EQ(truncated_to(fixture("gemma4_dense"), 4).n_shared_kv_layers, 1);
  EXPECT_EQ(truncated_to(fixture("gemma4_dense"), 2).n_shared_kv_layers, 0);
  EXPECT_THAT(truncated_to(fixture("qwen3_moe"), 1).moe->dense_layers, ElementsAre(0));
}

using Change = std::function<void(ModelConfig&)>;
std::string error_after(const std::string& model, const Change& change) {
  ModelConfig config = fixture(model);
  change(config);
  return config_error([&] { validate(config, "my.toml"); });
}

TEST(ModelConfig, D25_contradictions_are_refused_by_name) {
  const std::vector<std::tuple<const char*, Change, const char*>> cases{
      {"gemma2", [](auto& m) { m.family = "gemma5"; }, "supported: llama, qwen2"},
      {"llama3_gqa", [](auto& m) { m.mla.emplace(); }, "llama has no latent attention"},
      {"deepseek_v3", [](auto& m) { m.mla.reset(); }, "deepseek_v3 needs latent attention"},
      {"mixtral", [](auto& m) { m.moe.reset(); }, "mixtral needs experts"},
      {"gemma2", [](auto& m) { m.moe.emplace(); }, "gemma2 has no experts"},
      {"llama3_gqa", [](auto& m) { m.d_ff = 0; }, "d_ff is 0"},
      {"qwen3_moe", [](auto& m) { m.d_ff = 0; }, "some layers have a dense MLP"},
      {"gemma4_moe", [](auto& m) { m.d_ff = 0; }, "some layers have a dense MLP"},
      {"mixtral", [](auto& m) { m.moe->routing.top_k = 9; }, "top_k is 9; expected 1 to 8"},
      {"mixtral", [](auto& m) { m.moe->n_experts = 1 << 20; }, "n_experts"},
      {"mixtral", [](auto& m) { m.moe->n_experts = 1 << 14, m.moe->d_ff = 1 << 12; }, "expected"},
      {"deepseek_v3", [](auto& m) { m.moe->routing.n_groups = 3; }, "into 3 groups"},
      {"deepseek_v3", [](auto& m) { m.moe->routing.top_k_groups = 5; }, "top_k_groups"},
      {"deepseek_v3",
       [](auto& m) { m.moe->routing.top_k = 9; },
       "top_k 9 exceeds the 8 experts of 2 groups"},
      {"deepseek_v3",
       [](auto& m) { m.moe->routing.n_groups = 16, m.moe->routing.top_k_groups = 8; },
       "need two each"},
      {"deepseek_v3", [](auto& m) { m.moe->routing.scale = 0; }, "scale"},
      {"deepseek_v3", [](auto& m) { m.moe->dense_layers = {3}; }, "dense_layers"},
      {"deepseek_v3",
       [](auto& m) {
         m.moe->dense_layers = {1, 0};
       },
       "ascend"},
      {"deepseek_v3", [](auto& m) { m.mla->rope_dim = 7; }, "rope_dim is odd"},
      {"deepseek_v3", [](auto& m) { m.mla->kv_lora_rank = 0; }, "kv_lora_rank"},
      {"deepseek_v3", [](auto& m) { m.head_dim = 32; }, "nope_dim + rope_dim"},
      {"deepseek_v3", [](auto& m) { m.n_kv_heads = 4; }, "n_kv_heads must be n_heads"},
      {"deepseek_v3", [](auto& m) { m.qk_norm = true; }, "no qk_norm"},
      {"gemma4_dense", [](auto& m) { m.n_shared_kv_layers = 4; }, "no full attention layer"},
      {"gemma4_dense", [](auto& m) { m.n_shared_kv_layers = 6; }, "shared KV layers"},
      {"gemma4_dense", [](auto& m) { m.full_attention->n_kv_heads = 3; }, "multiple of n_kv_heads"},
      {"gemma4_dense", [](auto& m) { m.full_attention->head_dim = 0; }, "full_attention head_dim"},
      {"gemma4_dense", [](auto& m) { m.rope.rotary_fraction = 1.5; }, "rotary_fraction"},
      {"gemma4_dense", [](auto& m) { m.window_rope->theta = 0; }, "rope theta"},
      {"gemma4_dense", [](auto& m) { m.per_layer_input->dim = 0; }, "per_layer_input dim"},
      {"gemma2", [](auto& m) { m.attention_softcap = 0.0; }, "attention_softcap"},
      {"gemma2", [](auto& m) { m.final_softcap = -1.0; }, "final_softcap"},
      {"gemma2", [](auto& m) { m.attention_scale = NAN; }, "attention_scale"}};
  for (const auto& [model, change, part] : cases)
    EXPECT_THAT(error_after(model, change), HasSubstr(part)) << model << ": " << part;
}

}  // namespace
}  // namespace testbed
