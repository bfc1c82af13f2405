// Parameter count and consistency of a ModelConfig.
#include "runtime/config/model_config.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "kernels/base/errors.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

// Bounds that keep every product of sizes within 64 bits; real models are far below them.
struct Bound {
  const char* field;
  int64_t value;
  int64_t highest;
};

void check_bounds(const ModelConfig& c, const std::string& source) {
  const std::array<Bound, 8> bounds{{{"n_layers", c.n_layers, 1 << 14},
                                     {"d_model", c.d_model, 1 << 20},
                                     {"n_heads", c.n_heads, 1 << 16},
                                     {"n_kv_heads", c.n_kv_heads, 1 << 16},
                                     {"head_dim", c.head_dim, 1 << 14},
                                     {"d_ff", c.d_ff, 1 << 22},
                                     {"vocab_size", c.vocab_size, 1 << 24},
                                     {"max_positions", c.max_positions, 1LL << 31}}};
  for (const Bound& bound : bounds)
    if (bound.value < 1 || bound.value > bound.highest)
      throw ConfigError(fmt::format(
          "{}: {} is {}; expected 1 to {}", source, bound.field, bound.value, bound.highest));
}

void check_heads(const ModelConfig& c, const std::string& source) {
  if (c.n_heads % c.n_kv_heads != 0)
    throw ConfigError(fmt::format(
        "{}: n_heads {} is not a multiple of n_kv_heads {}", source, c.n_heads, c.n_kv_heads));
  if (c.head_dim % 2 != 0)
    throw ConfigError(
        fmt::format("{}: head_dim {} is odd; rope rotates pairs", source, c.head_dim));
  constexpr int64_t max_width = 1 << 22;
  if (c.n_heads * c.head_dim > max_width)
    throw ConfigError(fmt::format("{}: n_heads * head_dim is {}; expected at most {}",
                                  source,
                                  c.n_heads * c.head_dim,
                                  max_width));
}

void require(bool condition, const std::string& source, std::string_view message) {
  if (!condition) throw ConfigError(fmt::format("{}: {}", source, message));
}

bool positive(double x) { return std::isfinite(x) && x > 0; }

void check_rope(const RopeConfig& rope, const std::string& source) {
  require(positive(rope.theta) && rope.theta > 1, source, "rope theta must be above 1");
  if (rope.kind == RopeKind::plain) return;
  require(positive(rope.factor) && rope.factor >= 1, source, "rope factor must be at least 1");
  if (rope.kind == RopeKind::linear) return;
  require(rope.original_max_positions >= 1 && rope.original_max_positions <= (1LL << 31),
          source,
          "rope original_max_positions must be a positive number of tokens");
  if (rope.kind == RopeKind::llama3) {
    require(positive(rope.low_freq_factor) && positive(rope.high_freq_factor) &&
                rope.low_freq_factor < rope.high_freq_factor,
            source,
            "rope needs 0 < low_freq_factor < high_freq_factor");
    return;
  }
  require(positive(rope.beta_slow) && positive(rope.beta_fast) && rope.beta_slow <= rope.beta_fast,
          source,
          "rope needs 0 < beta_slow <= beta_fast");
  require(!rope.attention_factor || positive(*rope.attention_factor),
          source,
          "rope attention_factor must be above 0");
  for (const auto& mscale : {rope.mscale, rope.mscale_all_dim})
    require(!mscale || (std::isfinite(*mscale) && *mscale >= 0),
            source,
            "rope mscale and mscale_all_dim must not be negative");
}

void check_ids(const ModelConfig& c, const std::string& source) {
  const auto in_vocabulary = [&](const char* field, int32_t id) {
    if (id < 0 || id >= c.vocab_size)
      throw ConfigError(fmt::format(
          "{}: {} {} is outside the vocabulary of {}", source, field, id, c.vocab_size));
  };
  for (const int32_t id : c.eos_ids) in_vocabulary("eos id", id);
  if (c.bos_id) in_vocabulary("bos id", *c.bos_id);
}

}  // namespace

int64_t ModelConfig::n_parameters() const {
  const int64_t q_width = n_heads * head_dim;
  const int64_t kv_width = n_kv_heads * head_dim;
  int64_t layer = d_model * (q_width + 2 * kv_width) + q_width * d_model;  // q, k, v, o
  layer += 3 * d_model * d_ff;                                             // gate, up, down
  layer += 2 * d_model;                                                    // norms
  if (qkv_bias) layer += q_width + 2 * kv_width;
  if (output_bias) layer += d_model;
  if (mlp_bias) layer += 2 * d_ff + d_model;
  if (qk_norm) layer += 2 * head_dim;
  const int64_t table = vocab_size * d_model;
  return n_layers * layer + table + d_model + (tied_embeddings ? 0 : table);
}

void validate(const ModelConfig& config, const std::string& source) {
  constexpr std::array families{"llama", "qwen2", "qwen3", "mistral"};
  bool known = false;
  for (const char* family : families) known = known || config.family == family;
  if (!known)
    throw ConfigError(
        fmt::format("{}: model family {} is not supported; supported: llama, qwen2, "
                    "qwen3, mistral",
                    source,
                    in_quotes(config.family)));
  check_bounds(config, source);
  check_heads(config, source);
  require(positive(config.norm_eps) && config.norm_eps < 1,
          source,
          fmt::format("norm_eps is {}; expected a small positive number", config.norm_eps));
  check_rope(config.rope, source);
  require(static_cast<int64_t>(config.layer_windows.size()) == config.n_layers,
          source,
          fmt::format("layer_windows has {} entries for {} layers",
                      config.layer_windows.size(),
                      config.n_layers));
  for (const int64_t window : config.layer_windows)
    require(window >= 0, source, fmt::format("a window of {} tokens is negative", window));
  check_ids(config, source);
}

ModelConfig truncated_to(ModelConfig config, int64_t n_layers) {
  if (n_layers < 1 || n_layers > config.n_layers)
    throw ConfigError(
        fmt::format("--layers {}: {} has {} layers", n_layers, config.name, config.n_layers));
  config.n_layers = n_layers;
  config.layer_windows.resize(static_cast<size_t>(n_layers));
  return config;
}

}  // namespace testbed
