// ModelConfig: one description of a transformer for all families. Every reader (Hugging Face
// config.json, GGUF metadata, TOML preset) gives this; TransformerBlock reads it, and there is no
// class per family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/dtype.hpp"
#include "kernels/base/routing.hpp"

namespace testbed {

// proportional (gemma4): only the first pairs rotate, the exponent keeps the whole head_dim.
enum class RopeKind : uint8_t { plain, linear, llama3, yarn, proportional };

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
  double rotary_fraction = 1.0;          // proportional: of the pairs, those that rotate
  bool interleaved = false;              // pairs (2i, 2i + 1) instead of (i, i + head_dim / 2)
  bool operator==(const RopeConfig&) const = default;
};

// pre: x += f(norm(x)). sandwich (gemma): x += post_norm(f(norm(x))).
enum class NormPlacement : uint8_t { pre, sandwich };

// Full-attention layers that differ from the window layers (gemma4).
struct FullAttentionConfig {
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  bool key_is_value = false;  // no v_proj: V is the raw k_proj output, before k-norm and rope
  bool operator==(const FullAttentionConfig&) const = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): the cache holds kv_lora_rank +
// rope_dim elements per token and layer, whatever the heads.
struct MlaConfig {
  int64_t q_lora_rank = 0;  // 0: q_proj is one matrix
  int64_t kv_lora_rank = 0;
  int64_t nope_dim = 0;  // of q and k per head, without rope
  int64_t rope_dim = 0;  // of q per head, and of the one shared key
  int64_t v_dim = 0;     // per head
  double norm_eps = 1e-6;
  int64_t qk_dim() const { return nope_dim + rope_dim; }
  int64_t cached_dim() const { return kv_lora_rank + rope_dim; }
  bool operator==(const MlaConfig&) const = default;
};

// Mixture of experts.
struct MoeConfig {
  int64_t n_experts = 0;
  int64_t d_ff = 0;                   // of one expert
  int64_t shared_d_ff = 0;            // of the shared experts together; 0 = none
  std::vector<int64_t> dense_layers;  // layers with a dense MLP instead, ascending
  RoutingRule routing;
  bool selection_bias = false;  // e_score_correction_bias
  bool router_bias = false;     // added to the router's logits
  bool expert_bias = false;
  // gemma4: a dense MLP and the experts side by side, each with its own norms; the router sees the
  // raw residual and has scales per input and per expert.
  bool beside_mlp = false;
  bool operator==(const MoeConfig&) const = default;
};

// Per-layer embeddings (gemma4).
struct PerLayerInputConfig {
  int64_t dim = 0;
  int64_t vocab_size = 0;
  bool operator==(const PerLayerInputConfig&) const = default;
};

// What one layer is, resolved from the whole.
struct LayerShape {
  int64_t window = 0;  // visible tokens including the token itself; 0 = all
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;  // of q and k; MLA: nope + rope
  int64_t v_dim = 0;     // per head
  bool key_is_value = false;
  bool window_rope = false;  // rotated by window_rope, not rope
  int64_t kv_layer = 0;      // whose cached keys and values it reads: its own index, or a lower one
  int64_t d_ff = 0;          // of the dense MLP; 0 = none
  bool has_experts = false;
  bool operator==(const LayerShape&) const = default;
};

// What a layer keeps per token: keys [n_heads, k_dim] and values [n_heads, v_dim]; v_dim = 0: the
// values are the first elements of the keys (MLA's latent). Of the whole model, not of a rank.
struct CachedShape {
  int64_t n_heads = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  int64_t elements() const { return n_heads * (k_dim + v_dim); }
};

struct ModelConfig {
  std::string name;    // preset, folder or file name, as reported
  std::string family;  // "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gemma4",
                       // "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"
  int64_t n_layers = 0;
  int64_t d_model = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;  // of window layers where full_attention is set; MLA: n_heads
  int64_t head_dim = 0;    // MLA: nope + rope
  int64_t d_ff = 0;        // of the dense MLP
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  double norm_eps = 1e-5;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // bias of the attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim of q and k, before rope
  bool v_norm = false;   // the same of v, without weights
  bool attention_sinks = false;
  NormPlacement norms = NormPlacement::pre;
  bool norm_adds_one = false;  // norms multiply by 1 + w (gemma2, gemma3)
  Activation activation = Activation::silu;
  bool scaled_embedding = false;          // by sqrt(d_model)
  bool layer_scalars = false;             // a layer's output is multiplied by its layer_scalar
  std::optional<double> attention_scale;  // of q.k; 1 / sqrt(head_dim) if not set
  std::optional<double> attention_softcap;
  std::optional<double> final_softcap;
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of window layers, if theirs differs
  std::vector<int64_t>
      layer_windows;  // [n_layers] visible tokens including the token itself; 0 = all
  std::optional<FullAttentionConfig> full_attention;
  int64_t n_shared_kv_layers = 0;  // the last ones: they read the cache of the last layer of their
                                   // kind (window or full) before them
  bool double_wide_shared_mlp = false;  // the MLPs of those layers have twice the width
  std::optional<MlaConfig> mla;
  std::optional<MoeConfig> moe;
  std::optional<PerLayerInputConfig> per_layer_input;
  std::vector<int32_t> eos_ids;  // generation stops on any of them (D12)
  std::optional<int32_t> bos_id;
  DType stored_dtype = DType::BF16;  // dtype of most weights as stored
  bool operator==(const ModelConfig&) const = default;

  LayerShape layer(int64_t index) const;
  // What the layer keeps per token; of a layer that reads another's cache: that one's.
  CachedShape cached(int64_t index) const;
  // Factor of q.k of the layer, YaRN's mscale included.
  double scale_of_scores(int64_t index) const;
  // Parameters of one layer, all experts included.
  int64_t layer_parameters(int64_t index) const;
  // Parameters of the whole model; a tied head counts once. Presets are tested against published
  // totals.
  int64_t n_parameters() const;
  // Those that a token's pass multiplies by: the embedding rows and the experts not chosen left
  // out.
  int64_t n_active_parameters() const;
};

// Throws ConfigError naming the field when a value is missing, non-positive or contradictory.
// `source` is the file (and line, where known) that the error should point at.
void validate(const ModelConfig& config, const std::string& source);

// Keeps the first n_layers layers (--layers): full-size shapes on a small machine.
ModelConfig truncated_to(ModelConfig config, int64_t n_layers);

}  // namespace testbed
