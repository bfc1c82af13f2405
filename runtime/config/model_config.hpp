// ModelConfig: one description of a transformer for all families. Every reader (Hugging Face
// config.json, GGUF metadata, TOML preset) gives this; TransformerBlock reads it, and there is no
// class per family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace testbed {

enum class RopeKind : uint8_t { plain, linear, llama3, yarn };

// Rotary position embedding. Frequencies: runtime/config/rope.hpp.
struct RopeConfig {
  RopeKind kind = RopeKind::plain;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  int64_t original_max_positions = 0;  // llama3, yarn
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn
  std::optional<double>
      attention_factor;                  // yarn; an explicit value wins over the derived one (D10)
  std::optional<double> mscale;          // yarn
  std::optional<double> mscale_all_dim;  // yarn
  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  std::string name;    // preset, folder or file name, as reported
  std::string family;  // "llama", "qwen2", "qwen3", "mistral"
  int64_t n_layers = 0;
  int64_t d_model = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t d_ff = 0;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  double norm_eps = 1e-5;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // bias of the attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim of q and k, before rope
  RopeConfig rope;
  std::vector<int64_t>
      layer_windows;             // [n_layers] visible tokens including the token itself; 0 = all
  std::vector<int32_t> eos_ids;  // generation stops on any of them (D12)
  std::optional<int32_t> bos_id;
  DType stored_dtype = DType::BF16;  // dtype of most weights as stored
  bool operator==(const ModelConfig&) const = default;

  // Parameters of the whole model; a tied head counts once. Presets are tested against published
  // totals.
  int64_t n_parameters() const;
};

// Throws ConfigError naming the field when a value is missing, non-positive or contradictory.
// `source` is the file (and line, where known) that the error should point at.
void validate(const ModelConfig& config, const std::string& source);

// Keeps the first n_layers layers (--layers): full-size shapes on a small machine.
ModelConfig truncated_to(ModelConfig config, int64_t n_layers);

}  // namespace testbed
