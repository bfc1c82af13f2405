// mixtral, qwen3_moe and gpt_oss.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/config/hf_family.hpp"
#include "runtime/config/hf_rope.hpp"

namespace testbed {
namespace {

// The width of experts where the family has no dense MLP beside them.
void take_width_of_experts(ModelConfig& model) {
  model.moe->d_ff = model.d_ff;
  model.d_ff = 0;
}

int64_t read_n_qwen_experts(const JsonObject& config) {
  const auto hub = config.find_int("num_experts", 1, max_size);
  const auto newer = config.find_int("num_local_experts", 1, max_size);
  if (hub && newer && *hub != *newer)
    config.fail("num_experts", fmt::format("{} contradicts num_local_experts {}", *hub, *newer));
  return hub ? *hub : newer.value_or(128);
}

// Those of mlp_only_layers, and all but every decoder_sparse_step-th.
std::vector<int64_t> read_dense_layers(const JsonObject& config, int64_t n_layers) {
  std::vector<bool> dense(static_cast<size_t>(n_layers), false);
  const int64_t step = config.find_int("decoder_sparse_step", 1, max_size).value_or(1);
  for (int64_t layer = 0; layer < n_layers; ++layer)
    dense[static_cast<size_t>(layer)] = (layer + 1) % step != 0;
  if (const nlohmann::json* listed = config.find("mlp_only_layers")) {
    if (!listed->is_array()) config.fail("mlp_only_layers", "must be a list of layers");
    for (const nlohmann::json& layer : *listed) {
      const int64_t index =
          json_int(layer, fmt::format("{}: mlp_only_layers", config.where()), 0, max_size);
      if (index < n_layers) dense[static_cast<size_t>(index)] = true;
    }
  }
  std::vector<int64_t> layers;
  layers.reserve(dense.size());
  for (int64_t layer = 0; layer < n_layers; ++layer)
    if (dense[static_cast<size_t>(layer)]) layers.push_back(layer);
  return layers;
}

RopeConfig read_gpt_oss_rope(const JsonObject& config, int64_t max_positions) {
  constexpr double theta = 150000.0;
  if (config.has("rope_scaling") || config.has("rope_parameters"))
    return read_hf_rope(config, max_positions, theta);
  return {.kind = RopeKind::yarn,
          .theta = config.find_number("rope_theta").value_or(theta),
          .factor = 32.0,
          .original_max_positions = 4096,
          .truncate = false};
}

}  // namespace

void read_hf_mixtral(const JsonObject& config, ModelConfig& model) {
  require_value(config, "hidden_act", "silu");
  MoeConfig& moe = model.moe.emplace();
  moe.n_experts = config.find_int("num_local_experts", 1, max_size).value_or(8);
  moe.routing = {.top_k = config.find_int("num_experts_per_tok", 1, max_size).value_or(2),
                 .renormalise = true};
  take_width_of_experts(model);
  model.rope = read_hf_rope(config, model.max_positions, 1e6);
  const int64_t window = config.find_int("sliding_window", 1, max_size).value_or(0);
  model.layer_windows.assign(static_cast<size_t>(model.n_layers), window);
}

void read_hf_qwen3_moe(const JsonObject& config, ModelConfig& model) {
  require_value(config, "hidden_act", "silu");
  require_value(config, "use_sliding_window", false);
  read_attention_bias(config, model, false);
  model.qk_norm = true;
  MoeConfig& moe = model.moe.emplace();
  moe.n_experts = read_n_qwen_experts(config);
  moe.d_ff = config.find_int("moe_intermediate_size", 1, max_size).value_or(768);
  moe.dense_layers = read_dense_layers(config, model.n_layers);
  moe.routing = {.top_k = config.find_int("num_experts_per_tok", 1, max_size).value_or(8),
                 .renormalise = config.find_bool("norm_topk_prob").value_or(false)};
  if (moe.dense_layers.empty()) model.d_ff = 0;  // intermediate_size is there without a use
  model.rope = read_hf_rope(config, model.max_positions);
  model.layer_windows.assign(static_cast<size_t>(model.n_layers), 0);
}

void read_hf_gpt_oss(const JsonObject& config, ModelConfig& model) {
  require_value(config, "hidden_act", "silu");
  require_value(config, "swiglu_alpha", 1.702);
  require_value(config, "swiglu_limit", 7.0);
  read_attention_bias(config, model, true);
  model.attention_sinks = true;
  model.activation = Activation::clamped_swiglu;
  MoeConfig& moe = model.moe.emplace();
  moe.n_experts = config.find_int("num_local_experts", 1, max_size).value_or(128);
  moe.routing = {.top_k = config.find_int("num_experts_per_tok", 1, max_size).value_or(4),
                 .score = RouterScore::top_k_softmax};
  moe.router_bias = true;
  moe.expert_bias = true;
  take_width_of_experts(model);
  model.rope = read_gpt_oss_rope(config, model.max_positions);
  const int64_t window = int_or_null(config, "sliding_window", 128).value_or(0);
  model.layer_windows = read_window_pattern(config, model.n_layers, window, 2);
}

}  // namespace testbed
