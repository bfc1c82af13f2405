// The configurations of the fixture models that are not llama-shaped, as their config.json has them
// (the reader of which has its own tests): what decides which tensors they have.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/config/model_config.hpp"

namespace testbed::test {

struct Sizes {
  int64_t layers;
  int64_t d_model;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t d_ff;
  int64_t vocab = 512;
};

inline ModelConfig family_config(const std::string& family, const Sizes& sizes) {
  ModelConfig c;
  c.family = family;
  c.n_layers = sizes.layers;
  c.d_model = sizes.d_model;
  c.n_heads = 8;
  c.n_kv_heads = sizes.kv_heads;
  c.head_dim = sizes.head_dim;
  c.d_ff = sizes.d_ff;
  c.vocab_size = sizes.vocab;
  c.layer_windows.assign(static_cast<size_t>(sizes.layers), 0);
  return c;
}

inline MoeConfig moe(int64_t n_experts, int64_t d_ff, std::vector<int64_t> dense_layers = {}) {
  MoeConfig moe;
  moe.n_experts = n_experts;
  moe.d_ff = d_ff;
  moe.dense_layers = std::move(dense_layers);
  return moe;
}

inline ModelConfig gemma_config(const std::string& family, const Sizes& sizes) {
  ModelConfig c = family_config(family, sizes);
  c.tied_embeddings = true;
  c.norms = NormPlacement::sandwich;
  c.norm_adds_one = family != "gemma4";
  c.layer_scalars = family == "gemma4";
  c.qk_norm = family != "gemma2";
  return c;
}

inline ModelConfig gemma3_config() {
  ModelConfig c = gemma_config("gemma3", {7, 64, 1, 32, 128});
  c.n_heads = 4;
  return c;
}

inline ModelConfig gemma4_dense_config() {
  ModelConfig c = gemma_config("gemma4", {6, 64, 2, 16, 96});
  c.layer_windows = {16, 16, 0, 16, 16, 0};
  c.full_attention = FullAttentionConfig{2, 32, false};
  c.n_shared_kv_layers = 3;
  c.double_wide_shared_mlp = true;
  c.per_layer_input = PerLayerInputConfig{16, 512};
  return c;
}

inline ModelConfig gemma4_moe_config() {
  ModelConfig c = gemma_config("gemma4", {4, 64, 4, 16, 96});
  c.layer_windows = {16, 16, 16, 0};
  c.full_attention = FullAttentionConfig{2, 32, true};
  c.moe = moe(8, 32);
  c.moe->beside_mlp = true;
  return c;
}

inline ModelConfig mixtral_config() {
  ModelConfig c = family_config("mixtral", {3, 64, 2, 16, 96, 384});
  c.moe = moe(8, 96);
  return c;
}

inline ModelConfig qwen3_moe_config() {
  ModelConfig c = family_config("qwen3_moe", {3, 64, 4, 16, 128});
  c.qk_norm = true;
  c.moe = moe(16, 32, {0});
  return c;
}

inline ModelConfig deepseek_config(const std::string& family) {
  const bool v3 = family == "deepseek_v3";
  ModelConfig c = family_config(family, {3, 64, 8, 24, 128});
  c.mla = MlaConfig{
      .q_lora_rank = v3 ? 32 : 0, .kv_lora_rank = 32, .nope_dim = 16, .rope_dim = 8, .v_dim = 16};
  c.moe = moe(16, 32, {0});
  c.moe->shared_d_ff = v3 ? 32 : 64;
  c.moe->selection_bias = v3;
  return c;
}

inline ModelConfig gpt_oss_config() {
  ModelConfig c = family_config("gpt_oss", {4, 64, 2, 16, 48});
  c.qkv_bias = c.output_bias = c.attention_sinks = true;
  c.moe = moe(8, 48);
  c.moe->router_bias = c.moe->expert_bias = true;
  return c;
}

// By the name of the fixture.
inline std::map<std::string, ModelConfig> families() {
  return {{"gemma2", gemma_config("gemma2", {4, 96, 4, 16, 160})},
          {"gemma3", gemma3_config()},
          {"gemma4_dense", gemma4_dense_config()},
          {"gemma4_moe", gemma4_moe_config()},
          {"mixtral", mixtral_config()},
          {"qwen3_moe", qwen3_moe_config()},
          {"deepseek_v2", deepseek_config("deepseek_v2")},
          {"deepseek_v3", deepseek_config("deepseek_v3")},
          {"gpt_oss", gpt_oss_config()}};
}

}  // namespace testbed::test
