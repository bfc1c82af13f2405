// config.json of the families beyond llama, qwen and mistral: what is read, the defaults of
// transformers, and what is refused.
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/config/model_readers.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using nlohmann::json;
using test::config_error;
using test::file_text;
using test::fixture_path;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig parse(const json& config) {
  return model_config_from_hf_text(config.dump(), "config.json");
}
json hub(const std::string& model) {
  return json::parse(file_text(fixture_path("models/" + model + "/config_hub.json")));
}
json newer(const std::string& model) {
  return json::parse(file_text(fixture_path("models/" + model + "/config.json")));
}
// The fixture with one key set.
std::string error_with(const std::string& model, const char* key, const json& value) {
  json config = hub(model);
  config[key] = value;
  return config_error([&] { parse(config); });
}
ModelConfig without(const std::string& model, const std::vector<const char*>& keys) {
  json config = hub(model);
  for (const char* key : keys) config.erase(key);
  return parse(config);
}

TEST(ConfigGemma, gemma2) {
  const ModelConfig model = parse(hub("gemma2"));
  EXPECT_EQ(model.family, "gemma2");
  EXPECT_EQ(model.norms, NormPlacement::sandwich);
  EXPECT_EQ(model.activation, Activation::gelu_tanh);
  EXPECT_TRUE(model.norm_adds_one && model.scaled_embedding && model.tied_embeddings);
  EXPECT_FALSE(model.qk_norm || model.v_norm || model.layer_scalars || model.window_rope);
  EXPECT_EQ(model.attention_softcap, 5.0);
  EXPECT_EQ(model.final_softcap, 12.0);
  EXPECT_THAT(model.layer_windows, ElementsAre(20, 0, 20, 0));
  const ModelConfig defaults = without("gemma2",
                                       {"attn_logit_softcapping",
                                        "final_logit_softcapping",
                                        "query_pre_attn_scalar",
                                        "sliding_window",
                                        "tie_word_embeddings",
                                        "head_dim"});
  EXPECT_EQ(defaults.attention_softcap, 50.0);
  EXPECT_EQ(defaults.final_softcap, 30.0);
  EXPECT_EQ(defaults.attention_scale, 1.0 / 16);
  EXPECT_EQ(defaults.layer_windows[0], 4096);
  EXPECT_EQ(defaults.head_dim, 256);
  EXPECT_TRUE(defaults.tied_embeddings);
  json no_caps = hub("gemma2");
  no_caps["attn_logit_softcapping"] = nullptr;
  EXPECT_FALSE(parse(no_caps).attention_softcap);
}

TEST(ConfigGemma, gemma3) {
  const ModelConfig model = parse(hub("gemma3"));
  EXPECT_EQ(model.family, "gemma3");
  EXPECT_TRUE(model.norm_adds_one && model.qk_norm);
  EXPECT_EQ(model.rope.kind, RopeKind::linear);
  EXPECT_EQ(model.rope.theta, 1e6);
  ASSERT_TRUE(model.window_rope);
  EXPECT_EQ(model.window_rope->kind, RopeKind::plain);
  EXPECT_EQ(model.window_rope->theta, 1e4);
  EXPECT_THAT(model.layer_windows, ElementsAre(16, 16, 16, 16, 16, 0, 16));
  EXPECT_EQ(without("gemma3", {"rope_theta", "rope_local_base_freq"}), model);
  EXPECT_EQ(without("gemma3", {"sliding_window_pattern", "_sliding_window_pattern"}), model);
  json every_third = hub("gemma3");
  every_third["sliding_window_pattern"] = 3;
  every_third.erase("_sliding_window_pattern");
  EXPECT_THAT(parse(every_third).layer_windows, ElementsAre(16, 16, 0, 16, 16, 0, 16));
}

TEST(ConfigGemma, text_part_of_a_multimodal_checkpoint) {
  json text = hub("gemma3");
  text.erase("torch_dtype");
  text.erase("eos_token_id");
  const json document{{"model_type", "gemma3"},
                      {"text_config", text},
                      {"vision_config", {{"hidden_size", 1152}}},
                      {"torch_dtype", "bfloat16"},
                      {"eos_token_id", {1, 106}}};
  ModelConfig expected = parse(hub("gemma3"));
  expected.eos_ids = {1, 106};
  EXPECT_EQ(parse(document), expected);
  json unnamed = document;  // the part may leave out its type, and sizes that are the class's
  for (const char* key : {"model_type",
                          "vocab_size",
                          "num_attention_heads",
                          "head_dim",
                          "num_key_value_heads",
                          "max_position_embeddings"})
    unnamed["text_config"].erase(key);
  const ModelConfig defaults = parse(unnamed);
  EXPECT_EQ(defaults.vocab_size, 262208);
  EXPECT_EQ(defaults.n_heads, 8);
  EXPECT_EQ(defaults.n_kv_heads, 4);
  EXPECT_EQ(defaults.head_dim, 256);
  EXPECT_EQ(defaults.max_positions, 131072);
  json wrong = document;
  wrong["text_config"]["model_type"] = "gemma4_text";
  EXPECT_THAT(config_error([&] { parse(wrong); }), HasSubstr("must be gemma3_text"));
  wrong.erase("text_config");
  EXPECT_THAT(config_error([&] { parse(wrong); }), HasSubstr("text_config is missing"));
  json quantised = document;
  quantised["quantization_config"] = {{"quant_method", "gptq"}};
  EXPECT_THAT(config_error([&] { parse(quantised); }), HasSubstr("quantization_config"));
}

TEST(ConfigGemma, gemma4) {
  const ModelConfig dense = parse(newer("gemma4_dense"));
  EXPECT_EQ(dense.family, "gemma4");
  EXPECT_TRUE(dense.qk_norm && dense.v_norm && dense.layer_scalars && !dense.norm_adds_one);
  EXPECT_EQ(dense.attention_scale, 1.0);
  EXPECT_EQ(dense.rope.kind, RopeKind::proportional);
  EXPECT_EQ(dense.rope.rotary_fraction, 0.25);
  EXPECT_EQ(dense.n_shared_kv_layers, 3);
  EXPECT_TRUE(dense.double_wide_shared_mlp);
  EXPECT_EQ(dense.full_attention, (FullAttentionConfig{.n_kv_heads = 2, .head_dim = 32}));
  EXPECT_EQ(dense.per_layer_input, (PerLayerInputConfig{.dim = 16, .vocab_size = 512}));
  EXPECT_FALSE(dense.moe);
  const ModelConfig moe = parse(newer("gemma4_moe"));
  EXPECT_EQ(moe.full_attention,
            (FullAttentionConfig{.n_kv_heads = 2, .head_dim = 32, .key_is_value = true}));
  EXPECT_FALSE(moe.per_layer_input);
  ASSERT_TRUE(moe.moe);
  EXPECT_TRUE(moe.moe->beside_mlp);
  EXPECT_EQ(moe.moe->n_experts, 8);
  EXPECT_EQ(moe.moe->d_ff, 32);
  EXPECT_EQ(moe.moe->routing, (RoutingRule{.top_k = 2, .renormalise = true}));
  const ModelConfig defaults = without("gemma4_moe", {"rope_parameters", "global_head_dim"});
  EXPECT_EQ(defaults.rope, moe.rope);
  EXPECT_EQ(defaults.window_rope, moe.window_rope);
  EXPECT_EQ(defaults.full_attention->head_dim, 512);
}

TEST(ConfigGemma, contradictions_are_refused) {
  json both = newer("gemma4_dense");
  both["global_head_dim"] = 64;
  EXPECT_THAT(config_error([&] { parse(both); }), HasSubstr("per_layer_config contradicts"));
  json uneven = newer("gemma4_dense");
  uneven["per_layer_config"]["5"]["head_dim"] = 64;
  EXPECT_THAT(config_error([&] { parse(uneven); }), HasSubstr("per_layer_config gives layer 5"));
  json window = newer("gemma4_dense");
  window["per_layer_config"]["0"] = {{"head_dim", 32}};
  EXPECT_THAT(config_error([&] { parse(window); }), HasSubstr("changes layer 0"));
  json other = newer("gemma4_dense");
  other["per_layer_config"]["2"]["hidden_size"] = 32;
  EXPECT_THAT(config_error([&] { parse(other); }), HasSubstr("hidden_size is not supported"));
  json rope = hub("gemma3");
  rope["rope_parameters"] = newer("gemma3")["rope_parameters"];
  EXPECT_EQ(parse(rope), parse(hub("gemma3")));
  rope["rope_theta"] = 5e5;
  EXPECT_THAT(config_error([&] { parse(rope); }), HasSubstr("rope_parameters contradicts"));
  for (const auto& [model, key, value] : std::vector<std::tuple<const char*, const char*, json>>{
           {"gemma2", "hidden_activation", "gelu"},
           {"gemma2", "hidden_act", "silu"},
           {"gemma2", "use_bidirectional_attention", true},
           {"gemma2", "query_pre_attn_scalar", 0},
           {"gemma2", "layer_types", json::array({"full_attention"})},
           {"gemma3", "sliding_window_pattern", 4},
           {"gemma3", "rope_local_base_freq", "1e4"},
           {"gemma4_dense", "use_bidirectional_attention", "all"},
           {"gemma4_dense", "rope_theta", 1e4},
           {"gemma4_dense", "layer_types", json(std::vector<std::string>(6, "sliding_attention"))},
           {"gemma4_dense", "num_kv_shared_layers", 7},
           {"gemma4_moe", "num_experts", nullptr},
           {"gemma4_moe", "rope_parameters", {{"chunked_attention", json::object()}}}})
    EXPECT_NE(error_with(model, key, value), "") << model << " " << key;
}

TEST(ConfigMoe, mixtral) {
  const ModelConfig model = parse(hub("mixtral"));
  EXPECT_EQ(model.d_ff, 0);
  EXPECT_EQ(model.moe->d_ff, 96);
  EXPECT_EQ(model.moe->n_experts, 8);
  EXPECT_EQ(model.moe->routing, (RoutingRule{.top_k = 2, .renormalise = true}));
  const ModelConfig defaults =
      without("mixtral", {"rope_theta", "sliding_window", "rms_norm_eps", "num_experts_per_tok"});
  EXPECT_EQ(defaults, model);
}

TEST(ConfigMoe, qwen3_moe) {
  const ModelConfig model = parse(hub("qwen3_moe"));
  EXPECT_TRUE(model.qk_norm);
  EXPECT_EQ(model.d_ff, 128);
  EXPECT_THAT(model.moe->dense_layers, ElementsAre(0));
  EXPECT_EQ(model.moe->n_experts, 16);
  EXPECT_EQ(model.moe->routing, (RoutingRule{.top_k = 4, .renormalise = true}));
  json hub_name = hub("qwen3_moe");
  hub_name.erase("num_local_experts");
  hub_name["num_experts"] = 16;
  EXPECT_EQ(parse(hub_name), model);
  hub_name["num_local_experts"] = 8;
  EXPECT_THAT(config_error([&] { parse(hub_name); }), HasSubstr("num_experts 16 contradicts"));
  json sparse = hub("qwen3_moe");
  sparse["decoder_sparse_step"] = 2;
  sparse["mlp_only_layers"] = nullptr;
  EXPECT_THAT(parse(sparse).moe->dense_layers, ElementsAre(0, 2));
  sparse["decoder_sparse_step"] = 1;
  EXPECT_EQ(parse(sparse).d_ff, 0) << "no layer has a dense MLP";
  EXPECT_FALSE(without("qwen3_moe", {"norm_topk_prob"}).moe->routing.renormalise);
  EXPECT_THAT(error_with("qwen3_moe", "use_sliding_window", true), HasSubstr("use_sliding_window"));
  EXPECT_THAT(error_with("qwen3_moe", "mlp_only_layers", 0), HasSubstr("mlp_only_layers"));
}

TEST(ConfigMoe, gpt_oss) {
  const ModelConfig model = parse(hub("gpt_oss"));
  EXPECT_TRUE(model.attention_sinks && model.qkv_bias && model.output_bias);
  EXPECT_TRUE(model.moe->router_bias && model.moe->expert_bias);
  EXPECT_EQ(model.activation, Activation::clamped_swiglu);
  EXPECT_EQ(model.moe->d_ff, 48);
  EXPECT_EQ(model.moe->routing, (RoutingRule{.top_k = 2, .score = RouterScore::top_k_softmax}));
  EXPECT_THAT(model.layer_windows, ElementsAre(8, 0, 8, 0));
  EXPECT_EQ(without("gpt_oss", {"layer_types", "attention_bias", "swiglu_limit"}), model);
  const RopeConfig rope = without("gpt_oss", {"rope_scaling", "rope_theta"}).rope;
  EXPECT_EQ(rope,
            (RopeConfig{.kind = RopeKind::yarn,
                        .theta = 150000.0,
                        .factor = 32.0,
                        .original_max_positions = 4096,
                        .truncate = false}));
  EXPECT_THAT(error_with("gpt_oss", "swiglu_limit", 10.0),
              AllOf(HasSubstr("swiglu_limit"), HasSubstr("7.0")));
  EXPECT_NE(error_with("gpt_oss", "quantization_config", {{"quant_method", "mxfp4"}}), "");
}

TEST(ConfigDeepseek, v2) {
  const ModelConfig model = parse(newer("deepseek_v2"));
  EXPECT_EQ(model.mla,
            (MlaConfig{
                .q_lora_rank = 0, .kv_lora_rank = 32, .nope_dim = 16, .rope_dim = 8, .v_dim = 16}));
  EXPECT_EQ(model.head_dim, 24);
  EXPECT_EQ(model.n_kv_heads, 8);
  EXPECT_TRUE(model.rope.interleaved);
  EXPECT_EQ(model.moe->shared_d_ff, 64);
  EXPECT_THAT(model.moe->dense_layers, ElementsAre(0));
  EXPECT_EQ(model.moe->routing,
            (RoutingRule{.top_k = 4, .scale = 1.5, .n_groups = 4, .top_k_groups = 2}));
  json greedy = hub("deepseek_v2");
  greedy["topk_method"] = "greedy";
  greedy["norm_topk_prob"] = true;
  EXPECT_EQ(parse(greedy).moe->routing, (RoutingRule{.top_k = 4, .scale = 1.5}));
  EXPECT_EQ(without("deepseek_v2", {"q_lora_rank"}).mla->q_lora_rank, 1536);
}

TEST(ConfigDeepseek, v3) {
  const ModelConfig model = parse(hub("deepseek_v3"));
  EXPECT_EQ(model.mla->q_lora_rank, 32);
  EXPECT_TRUE(model.moe->selection_bias && model.rope.interleaved);
  EXPECT_EQ(model.moe->shared_d_ff, 32);
  EXPECT_EQ(model.moe->routing,
            (RoutingRule{.top_k = 4,
                         .score = RouterScore::sigmoid,
                         .renormalise = true,
                         .scale = 2.5,
                         .n_groups = 4,
                         .top_k_groups = 2,
                         .group_score = GroupScore::top2_sum}));
  EXPECT_EQ(without("deepseek_v3", {"rope_interleave", "norm_topk_prob", "routed_scaling_factor"}),
            model);
  EXPECT_THAT(without("deepseek_v3", {"first_k_dense_replace"}).moe->dense_layers,
              ElementsAre(0, 1, 2));
}

TEST(ConfigDeepseek, contradictions_are_refused) {
  for (const auto& [model, key, value] : std::vector<std::tuple<const char*, const char*, json>>{
           {"deepseek_v2", "topk_method", "noaux_tc"},
           {"deepseek_v2", "scoring_func", "sigmoid"},
           {"deepseek_v2", "mlp_bias", true},
           {"deepseek_v2", "num_experts_per_tok", nullptr},
           {"deepseek_v2", "num_experts_per_tok", 9},
           {"deepseek_v3", "topk_method", "greedy"},
           {"deepseek_v3", "scoring_func", "softmax"},
           {"deepseek_v3", "attention_bias", true},
           {"deepseek_v3", "moe_layer_freq", 2},
           {"deepseek_v3", "head_dim", 16},
           {"deepseek_v3", "qk_head_dim", 16},
           {"deepseek_v3", "num_key_value_heads", 4},
           {"deepseek_v3", "n_group", 3},
           {"deepseek_v3", "n_shared_experts", 100000},
           {"deepseek_v3", "hidden_act", "gelu"}})
    EXPECT_THAT(error_with(model, key, value), HasSubstr("config.json")) << model << " " << key;
}

}  // namespace
}  // namespace testbed
