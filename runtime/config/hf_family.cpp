#include "runtime/config/hf_family.hpp"

#include <fmt/format.h>

#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

bool is_sliding(const JsonObject& config, const nlohmann::json& type) {
  if (type == "sliding_attention") return true;
  if (type != "full_attention")
    config.fail("layer_types",
                fmt::format("has {}; supported: full_attention, sliding_attention", shown(type)));
  return false;
}

}  // namespace

std::optional<int64_t> int_or_null(const JsonObject& config,
                                   std::string_view key,
                                   int64_t fallback) {
  if (!config.value().contains(key)) return fallback;
  return config.find_int(key, 0, max_size);
}

std::optional<double> number_or_null(const JsonObject& config,
                                     std::string_view key,
                                     std::optional<double> fallback) {
  if (!config.value().contains(key)) return fallback;
  return config.find_number(key);
}

void require_value(const JsonObject& config, std::string_view key, const nlohmann::json& expected) {
  const nlohmann::json* value = config.find(key);
  if (value != nullptr && *value != expected)
    config.fail(key,
                fmt::format("{} is not supported; supported: {}", shown(*value), shown(expected)));
}

void read_attention_bias(const JsonObject& config, ModelConfig& model, bool fallback) {
  model.qkv_bias = config.find_bool("attention_bias").value_or(fallback);
  model.output_bias = model.qkv_bias;
}

std::optional<std::vector<int64_t>> read_layer_types(const JsonObject& config,
                                                     int64_t n_layers,
                                                     int64_t window) {
  const nlohmann::json* types = config.find("layer_types");
  if (types == nullptr) return std::nullopt;
  std::vector<int64_t> windows(static_cast<size_t>(n_layers), 0);
  if (!types->is_array() || types->size() != windows.size())
    config.fail("layer_types", fmt::format("must list {} layers", windows.size()));
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    if (!is_sliding(config, (*types)[layer])) continue;
    if (window == 0)
      config.fail("layer_types", "has sliding_attention, but no sliding window is in use");
    windows[layer] = window;
  }
  return windows;
}

std::vector<int64_t> read_window_pattern(const JsonObject& config,
                                         int64_t n_layers,
                                         int64_t window,
                                         int64_t full_every) {
  if (auto windows = read_layer_types(config, n_layers, window)) return *windows;
  std::vector<int64_t> windows(static_cast<size_t>(n_layers), window);
  for (int64_t layer = full_every - 1; layer < n_layers; layer += full_every)
    windows[static_cast<size_t>(layer)] = 0;
  return windows;
}

}  // namespace testbed
