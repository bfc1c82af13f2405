// What the readers of Hugging Face families share. A family's reader fills in what its class in
// transformers does beyond the common keys; where config.json leaves a key out, that class's
// default holds (transformers 5.24).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/config/json_input.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed {

inline constexpr int64_t max_size = 1LL << 31;  // of any count; validate() bounds each field

// Class defaults of the common keys. Sizes are required unless Hub files of the family are known to
// leave them out.
struct HfDefaults {
  std::optional<int64_t> vocab_size;
  std::optional<int64_t> max_positions;
  std::optional<int64_t> n_heads;
  std::optional<int64_t> n_kv_heads;  // else as many as heads
  std::optional<int64_t> head_dim;    // else hidden_size / heads
  double norm_eps = 1e-6;
  bool tied_embeddings = false;
};

struct HfFamily {
  std::string_view model_type;
  std::string_view family;
  void (*read)(const JsonObject& config, ModelConfig& model);
  HfDefaults defaults = {};
};

void read_hf_dense(const JsonObject& config, ModelConfig& model);  // llama, qwen2, qwen3, mistral
void read_hf_gemma2(const JsonObject& config, ModelConfig& model);
void read_hf_gemma3(const JsonObject& config, ModelConfig& model);
void read_hf_gemma4(const JsonObject& config, ModelConfig& model);
void read_hf_mixtral(const JsonObject& config, ModelConfig& model);
void read_hf_qwen3_moe(const JsonObject& config, ModelConfig& model);
void read_hf_gpt_oss(const JsonObject& config, ModelConfig& model);
void read_hf_deepseek_v2(const JsonObject& config, ModelConfig& model);
void read_hf_deepseek_v3(const JsonObject& config, ModelConfig& model);

// The key's value, `fallback` where the key is absent, nothing where it is null.
std::optional<int64_t> int_or_null(const JsonObject& config,
                                   std::string_view key,
                                   int64_t fallback);
std::optional<double> number_or_null(const JsonObject& config,
                                     std::string_view key,
                                     std::optional<double> fallback);

// For what a family always does the same way: another value is refused.
void require_value(const JsonObject& config, std::string_view key, const nlohmann::json& expected);

// attention_bias is of q, k, v and of the output projection.
void read_attention_bias(const JsonObject& config, ModelConfig& model, bool fallback);

// layer_types as windows, `window` tokens for sliding_attention; where the key is absent, every
// full_every-th layer is full_attention.
std::vector<int64_t> read_window_pattern(const JsonObject& config,
                                         int64_t n_layers,
                                         int64_t window,
                                         int64_t full_every);
// The same of a present layer_types alone; nothing if the key is absent.
std::optional<std::vector<int64_t>> read_layer_types(const JsonObject& config,
                                                     int64_t n_layers,
                                                     int64_t window);

}  // namespace testbed
