// gemma2, gemma3 and gemma4 (their text models).
#include <fmt/format.h>

#include <cmath>

#include "runtime/config/hf_family.hpp"
#include "runtime/config/hf_rope.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

void read_gemma(const JsonObject& config, ModelConfig& model) {
  require_value(config, "hidden_activation", "gelu_pytorch_tanh");
  // Older files have the exact GELU here too, which the class does not read.
  if (const auto act = config.find_string("hidden_act"); act && *act != "gelu")
    require_value(config, "hidden_act", "gelu_pytorch_tanh");
  read_attention_bias(config, model, false);
  model.norms = NormPlacement::sandwich;
  model.activation = Activation::gelu_tanh;
  model.scaled_embedding = true;
}

void read_query_scale(const JsonObject& config, ModelConfig& model) {
  require_value(config, "use_bidirectional_attention", false);
  const double scalar = config.find_number("query_pre_attn_scalar").value_or(256);
  if (!(scalar > 0)) config.fail("query_pre_attn_scalar", "must be above 0");
  model.attention_scale = 1.0 / std::sqrt(scalar);
}

void set_ropes(const LayerRopes& ropes, ModelConfig& model) {
  model.rope = ropes.full;
  if (!(ropes.window == ropes.full)) model.window_rope = ropes.window;
}

int64_t read_pattern(const JsonObject& config) {
  constexpr int64_t class_default = 6;
  const auto pattern = config.find_int("sliding_window_pattern", 1, max_size);
  const auto written = config.find_int("_sliding_window_pattern", 1, max_size);
  if (pattern && written && *pattern != *written)
    config.fail("sliding_window_pattern", "contradicts _sliding_window_pattern");
  return pattern ? *pattern : written.value_or(class_default);
}

// Head sizes of a full attention layer, from Hub's names or from per_layer_config.
struct FullHeads {
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  bool operator==(const FullHeads&) const = default;
};

FullHeads hub_full_heads(const JsonObject& config, const ModelConfig& model, bool key_is_value) {
  FullHeads heads{.n_kv_heads = model.n_kv_heads,
                  .head_dim = config.find_int("global_head_dim", 1, max_size).value_or(512)};
  const auto n = config.find_int("num_global_key_value_heads", 1, max_size);
  if (n && key_is_value) heads.n_kv_heads = *n;  // the class reads it in this case only
  return heads;
}

FullHeads heads_in_per_layer_config(const JsonObject& per_layer,
                                    const ModelConfig& model,
                                    int64_t layer) {
  FullHeads heads{.n_kv_heads = model.n_kv_heads, .head_dim = model.head_dim};
  const auto entry = per_layer.find_object(std::to_string(layer));
  if (!entry) return heads;
  for (const auto& [key, value] : entry->value().items())
    if (key != "head_dim" && key != "num_key_value_heads")
      entry->fail(key, "is not supported; supported: head_dim, num_key_value_heads");
  heads.n_kv_heads = entry->find_int("num_key_value_heads", 1, max_size).value_or(heads.n_kv_heads);
  heads.head_dim = entry->find_int("head_dim", 1, max_size).value_or(heads.head_dim);
  return heads;
}

// Every full layer alike, window layers as the rest of the file says.
FullHeads per_layer_full_heads(const JsonObject& config,
                               const JsonObject& per_layer,
                               const ModelConfig& model) {
  const FullHeads usual{.n_kv_heads = model.n_kv_heads, .head_dim = model.head_dim};
  std::optional<FullHeads> full;
  for (int64_t layer = 0; layer < model.n_layers; ++layer) {
    const FullHeads heads = heads_in_per_layer_config(per_layer, model, layer);
    const bool is_full = model.layer_windows[static_cast<size_t>(layer)] == 0;
    if (!is_full && !(heads == usual))
      config.fail("per_layer_config", fmt::format("changes layer {}, which has a window", layer));
    if (is_full && full && !(*full == heads))
      config.fail("per_layer_config",
                  fmt::format("gives layer {} other heads than the full layers before it", layer));
    if (is_full) full = heads;
  }
  return full.value_or(usual);
}

void read_full_attention(const JsonObject& config, ModelConfig& model) {
  const bool key_is_value = config.find_bool("attention_k_eq_v").value_or(false);
  const auto per_layer = config.find_object("per_layer_config");
  FullHeads heads;
  if (per_layer) {
    heads = per_layer_full_heads(config, *per_layer, model);
    for (const char* hub : {"global_head_dim", "num_global_key_value_heads"})
      if (config.has(hub) && !(hub_full_heads(config, model, key_is_value) == heads))
        config.fail("per_layer_config", fmt::format("contradicts {}; keep one of them", hub));
  } else {
    heads = hub_full_heads(config, model, key_is_value);
  }
  const FullHeads usual{.n_kv_heads = model.n_kv_heads, .head_dim = model.head_dim};
  if (key_is_value || !(heads == usual))
    model.full_attention = {
        .n_kv_heads = heads.n_kv_heads, .head_dim = heads.head_dim, .key_is_value = key_is_value};
}

void read_gemma4_experts(const JsonObject& config, ModelConfig& model) {
  if (!config.find_bool("enable_moe_block").value_or(false)) return;
  MoeConfig& moe = model.moe.emplace();
  moe.n_experts = config.get_int("num_experts", 1, max_size);
  moe.d_ff = config.get_int("moe_intermediate_size", 1, max_size);
  moe.routing = {.top_k = config.get_int("top_k_experts", 1, max_size), .renormalise = true};
  moe.beside_mlp = true;
}

void read_per_layer_input(const JsonObject& config, ModelConfig& model) {
  const int64_t dim = int_or_null(config, "hidden_size_per_layer_input", 256).value_or(0);
  if (dim == 0) return;
  model.per_layer_input = {
      .dim = dim,
      .vocab_size = config.find_int("vocab_size_per_layer_input", 1, max_size).value_or(262144)};
}

void read_gemma4_windows(const JsonObject& config, ModelConfig& model) {
  if (config.find("use_bidirectional_attention") != nullptr)  // of images: text stays causal
    require_value(config, "use_bidirectional_attention", "vision");
  const int64_t window = config.find_int("sliding_window", 1, max_size).value_or(512);
  model.layer_windows = read_window_pattern(config, model.n_layers, window, 6);
  if (!config.has("layer_types")) model.layer_windows.back() = 0;  // the class makes it so
  if (model.layer_windows.back() != 0)
    config.fail("layer_types", "must end with full_attention for gemma4");
}

}  // namespace

void read_hf_gemma2(const JsonObject& config, ModelConfig& model) {
  read_gemma(config, model);
  read_query_scale(config, model);
  model.norm_adds_one = true;
  model.attention_softcap = number_or_null(config, "attn_logit_softcapping", 50.0);
  model.final_softcap = number_or_null(config, "final_logit_softcapping", 30.0);
  model.rope = read_hf_rope(config, model.max_positions);
  const int64_t window = int_or_null(config, "sliding_window", 4096).value_or(0);
  model.layer_windows = read_window_pattern(config, model.n_layers, window, 2);
}

void read_hf_gemma3(const JsonObject& config, ModelConfig& model) {
  read_gemma(config, model);
  read_query_scale(config, model);
  model.norm_adds_one = true;
  model.qk_norm = true;
  model.attention_softcap = number_or_null(config, "attn_logit_softcapping", std::nullopt);
  model.final_softcap = number_or_null(config, "final_logit_softcapping", std::nullopt);
  set_ropes(
      read_hf_layer_ropes(config,
                          model.max_positions,
                          {.full = RopeConfig{.theta = 1e6}, .window = RopeConfig{.theta = 1e4}}),
      model);
  const int64_t window = int_or_null(config, "sliding_window", 4096).value_or(0);
  model.layer_windows = read_window_pattern(config, model.n_layers, window, read_pattern(config));
}

void read_hf_gemma4(const JsonObject& config, ModelConfig& model) {
  read_gemma(config, model);
  for (const char* older : {"rope_theta", "rope_scaling", "rope_local_base_freq"})
    if (config.has(older))
      config.fail(older, "is not read for gemma4, whose rope is in rope_parameters");
  model.qk_norm = true;
  model.v_norm = true;
  model.layer_scalars = true;
  model.attention_scale = 1.0;
  model.final_softcap = number_or_null(config, "final_logit_softcapping", std::nullopt);
  read_gemma4_windows(config, model);
  const RopeConfig full{.kind = RopeKind::proportional, .theta = 1e6, .rotary_fraction = 0.25};
  set_ropes(read_hf_layer_ropes(
                config, model.max_positions, {.full = full, .window = RopeConfig{.theta = 1e4}}),
            model);
  read_full_attention(config, model);
  model.n_shared_kv_layers = config.find_int("num_kv_shared_layers", 0, max_size).value_or(0);
  model.double_wide_shared_mlp = config.find_bool("use_double_wide_mlp").value_or(false);
  read_gemma4_experts(config, model);
  read_per_layer_input(config, model);
}

}  // namespace testbed
