// Presets with experts, latent attention and layers of several kinds: totals, bytes of a token's
// keys and values, and the tables that describe them.
#include <algorithm>
#include <cmath>

#include "runtime/config/model_readers.hpp"
#include "runtime/config/presets.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using test::replaced;
using testing::HasSubstr;

ModelConfig preset(const std::string& name) { return read_model_config(locate_model(name)); }

// Totals and active parameters as their publishers round them. Counts are from shapes, so a total
// may be off by half of the last published digit; active parameters by a whole one, since some
// publishers cut digits off (Qwen3-30B-A3B: 3.353 B is "3.3B"). Publishers differ in whether the
// rows of the embedding are active: where they count them, so does the test.
struct PublishedMoe {
  const char* name;
  double total_b;      // 1e9 parameters
  double total_digit;  // the last digit published
  double active_b;
  double active_digit;
  bool embedding_is_active;
};

TEST(Presets, totals_of_mixture_of_experts_models_are_the_published_ones) {
  const std::vector<PublishedMoe> models{
      // mistral.ai/news/mixtral-of-experts: 46.7 B total, 12.9 B per token.
      {"mixtral-8x7b", 46.7, 0.1, 12.9, 0.1, true},
      // mistral.ai/news/mixtral-8x22b: 141 B, 39 B active.
      {"mixtral-8x22b", 141, 1, 39, 1, true},
      // Model cards of Qwen3-30B-A3B and Qwen3-235B-A22B.
      {"qwen3-30b-a3b", 30.5, 0.1, 3.3, 0.1, true},
      {"qwen3-235b-a22b", 235, 1, 22, 1, true},
      // arXiv:2405.04434: 236 B, of which 21 B are activated for each token.
      {"deepseek-v2", 236, 1, 21, 1, false},
      // arXiv:2412.19437: 671 B, of which 37 B are activated for each token.
      {"deepseek-v3", 671, 1, 37, 1, false},
      // arXiv:2508.10925, table 1: 116.83 B total, 5.13 B active, where the unembedding counts as
      // active and the embedding does not.
      {"gpt-oss-120b", 116.83, 0.01, 5.13, 0.01, false},
      // Model card of gemma-4-26B-A4B: 25.2 B, 3.8 B active.
      {"gemma4-26b-a4b", 25.2, 0.1, 3.8, 0.1, true}};
  for (const PublishedMoe& model : models) {
    const ModelConfig config = preset(model.name);
    EXPECT_EQ(config.name, model.name);
    EXPECT_NEAR(
        static_cast<double>(config.n_parameters()) / 1e9, model.total_b, model.total_digit / 2)
        << model.name;
    const int64_t rows = model.embedding_is_active && !config.tied_embeddings
                             ? config.vocab_size * config.d_model
                             : 0;
    EXPECT_NEAR(static_cast<double>(config.n_active_parameters() + rows) / 1e9,
                model.active_b,
                model.active_digit)
        << model.name;
  }
}

// arXiv:2503.19786, table 1: Gemma 3 27B has 25,600 M parameters beside its embedding and the
// vision tower; the hundreds of millions are its last digit.
TEST(Presets, gemma3_27b_without_its_embedding) {
  const ModelConfig config = preset("gemma3-27b");
  EXPECT_NEAR(static_cast<double>(config.n_parameters() - config.vocab_size * config.d_model) / 1e9,
              25.6,
              0.05);
}

// Elements that a token leaves in the cache, over all layers.
int64_t cached_elements(const ModelConfig& config) {
  int64_t n = 0;
  for (int64_t i = 0; i < config.n_layers; ++i)
    if (config.layer(i).kv_layer == i) n += config.cached(i).elements();
  return n;
}

TEST(Presets, kv_bytes_per_token_are_the_closed_form) {
  constexpr int64_t bf16 = 2;  // bytes
  EXPECT_EQ(bf16 * cached_elements(preset("llama3-70b")), 320 * 1024);
  EXPECT_EQ(bf16 * cached_elements(preset("deepseek-v3")), bf16 * 61 * (512 + 64));
  EXPECT_EQ(bf16 * cached_elements(preset("deepseek-v2")), bf16 * 60 * (512 + 64));
  EXPECT_EQ(bf16 * cached_elements(preset("gemma3-27b")), bf16 * 62 * 2 * 16 * 128);
  // 25 window layers of 8 heads of 256, 5 full ones of 2 heads of 512.
  EXPECT_EQ(bf16 * cached_elements(preset("gemma4-26b-a4b")),
            bf16 * 2 * (25 * 8 * 256 + 5 * 2 * 512));
}

TEST(Presets, fields_of_the_other_families) {
  const ModelConfig gemma2 = preset("gemma2-27b");
  EXPECT_NEAR(*gemma2.attention_scale, 1 / std::sqrt(144.0), 1e-16);
  EXPECT_EQ(gemma2.layer(0).window, 4096);
  EXPECT_EQ(gemma2.layer(1).window, 0);
  const ModelConfig gemma3 = preset("gemma3-27b");
  EXPECT_NEAR(*gemma3.attention_scale, 1 / std::sqrt(168.0), 1e-16);
  EXPECT_EQ(std::count(gemma3.layer_windows.begin(), gemma3.layer_windows.end(), 0), 10);
  EXPECT_EQ(gemma3.layer(5).window, 0);
  EXPECT_EQ(gemma3.layer(61).window, 1024);
  EXPECT_EQ(gemma3.window_rope->theta, 1e4);
  const ModelConfig gemma4 = preset("gemma4-26b-a4b");
  EXPECT_TRUE(gemma4.layer(29).key_is_value && gemma4.moe->beside_mlp && gemma4.layer_scalars);
  EXPECT_EQ(gemma4.layer(29).head_dim, 512);
  EXPECT_EQ(gemma4.rope.rotary_fraction, 0.25);
  const ModelConfig v3 = preset("deepseek-v3");
  EXPECT_EQ(v3.layer(0).d_ff, 18432);
  EXPECT_TRUE(v3.layer(3).has_experts && !v3.layer(2).has_experts && v3.rope.interleaved);
  EXPECT_EQ(v3.moe->routing.group_score, GroupScore::top2_sum);
  EXPECT_EQ(v3.layer(0).head_dim, 192);
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(v3.scale_of_scores(0), mscale * mscale / std::sqrt(192.0), 1e-15);
  const ModelConfig gpt_oss = preset("gpt-oss-120b");
  EXPECT_EQ(gpt_oss.activation, Activation::clamped_swiglu);
  EXPECT_EQ(gpt_oss.moe->routing.score, RouterScore::top_k_softmax);
  EXPECT_EQ(gpt_oss.layer(0).window, 128);
}

// Every key of the tables, on a model that no preset is.
TEST(Presets, tables_of_a_toml_preset) {
  const std::string text = R"(name = "toy"
family = "gemma4"
n_layers = 6
d_model = 64
n_heads = 8
n_kv_heads = 2
head_dim = 16
d_ff = 96
vocab_size = 512
max_positions = 256
norm_eps = 1e-6
window = 16
full_every = 3
n_shared_kv_layers = 3
double_wide_shared_mlp = true
v_norm = true
stored_dtype = "f32"
[per_layer_input]
dim = 16
vocab_size = 512
[rope]
kind = "proportional"
theta = 1e6
rotary_fraction = 0.25
[moe]
n_experts = 8
d_ff = 32
top_k = 2
group_score = "top2_sum"
)";
  const ModelConfig model = model_config_from_toml(text, "toy.toml");
  EXPECT_EQ(model.per_layer_input, (PerLayerInputConfig{.dim = 16, .vocab_size = 512}));
  EXPECT_EQ(model.layer_windows, (std::vector<int64_t>{16, 16, 0, 16, 16, 0}));
  EXPECT_EQ(model.layer(5).kv_layer, 2);
  EXPECT_EQ(model.layer(5).d_ff, 0);
  EXPECT_TRUE(model.v_norm && model.double_wide_shared_mlp);
  const auto error = [&](const std::string& from, const std::string& to) {
    return config_error([&] { model_config_from_toml(replaced(text, from, to), "toy.toml"); });
  };
  EXPECT_THAT(error("rotary_fraction = 0.25", ""), HasSubstr("rotary_fraction is missing"));
  EXPECT_THAT(error("rotary_fraction", "beta_fast"), HasSubstr("no meaning for this rope kind"));
  EXPECT_THAT(error("\"top2_sum\"", "\"mean\""),
              HasSubstr("toy.toml:29: group_score \"mean\" is not one of maximum, top2_sum"));
  EXPECT_THAT(error("top_k = 2", "topk = 2"), HasSubstr("toy.toml:28: unknown key \"topk\""));
  EXPECT_THAT(error("window = 16\n", ""), HasSubstr("full_every has no meaning without a window"));
  EXPECT_THAT(error("[per_layer_input]\ndim = 16\nvocab_size = 512\n", "[mla]\n"),
              HasSubstr("kv_lora_rank is missing"));
  EXPECT_THAT(error("n_shared_kv_layers = 3", "moe = 3"), HasSubstr("toy.toml:"));
  EXPECT_THAT(error("n_shared_kv_layers = 3", "n_shared_kv_layers = 4"),
              HasSubstr("no full attention layer"));
  EXPECT_THAT(error("n_shared_kv_layers = 3", "norms = \"post\""), HasSubstr("pre, sandwich"));
  EXPECT_THAT(error("n_shared_kv_layers = 3", "activation = \"relu\""),
              HasSubstr("silu, gelu_tanh, clamped_swiglu"));
}

}  // namespace
}  // namespace testbed
