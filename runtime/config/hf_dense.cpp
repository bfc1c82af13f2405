// llama, qwen2, qwen3 and mistral.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/config/hf_family.hpp"
#include "runtime/config/hf_rope.hpp"

namespace testbed {
namespace {

// What a family does whatever the file says must not be contradicted by the file.
void read_biases(const JsonObject& config, ModelConfig& model) {
  model.mlp_bias = config.find_bool("mlp_bias").value_or(false);
  if (model.mlp_bias && model.family != "llama")
    config.fail("mlp_bias", fmt::format("is true, which {} does not have", model.family));
  read_attention_bias(config, model, false);
  if (model.qkv_bias && model.family == "mistral")
    config.fail("attention_bias", "is true, which mistral does not have");
  if (model.family == "qwen2") {  // always, and never on the output projection
    model.qkv_bias = true;
    model.output_bias = false;
  }
  model.qk_norm = model.family == "qwen3";
}

// Window of the layers that have one; 0 = none.
int64_t read_window(const JsonObject& config, const std::string& family) {
  const bool present = config.value().contains("sliding_window");
  const int64_t window = config.find_int("sliding_window", 1, max_size).value_or(0);
  if (family == "llama") {
    if (window != 0) config.fail("sliding_window", "is set, which llama does not have");
    return 0;
  }
  constexpr int64_t class_default = 4096;  // of MistralConfig, Qwen2Config and Qwen3Config
  if (family == "mistral") return present ? window : class_default;
  if (!config.find_bool("use_sliding_window").value_or(false)) return 0;
  return present ? window : class_default;
}

std::vector<int64_t> read_layer_windows(const JsonObject& config, const ModelConfig& model) {
  const int64_t window = read_window(config, model.family);
  if (auto windows = read_layer_types(config, model.n_layers, window)) return *windows;
  std::vector<int64_t> windows(static_cast<size_t>(model.n_layers), window);
  if (model.family == "qwen2" || model.family == "qwen3") {
    constexpr int64_t class_default = 28;
    const int64_t n_full =
        config.find_int("max_window_layers", 0, max_size).value_or(class_default);
    for (int64_t layer = 0; layer < std::min(n_full, model.n_layers); ++layer)
      windows[static_cast<size_t>(layer)] = 0;
  }
  return windows;
}

}  // namespace

void read_hf_dense(const JsonObject& config, ModelConfig& model) {
  require_value(config, "hidden_act", "silu");
  read_biases(config, model);
  model.rope = read_hf_rope(config, model.max_positions);
  model.layer_windows = read_layer_windows(config, model);
}

}  // namespace testbed
