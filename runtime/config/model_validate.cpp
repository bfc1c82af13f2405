// Consistency of a ModelConfig.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/errors.hpp"
#include "runtime/config/families.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/config/text_input.hpp"
#include "runtime/config/validation.hpp"

namespace testbed {
namespace {

// Bounds that keep every product of sizes within 64 bits; real models are far below them.
struct Bound {
  const char* field;
  int64_t value;
  int64_t lowest;
  int64_t highest;
};

constexpr int64_t max_head_dim = 1 << 14;
constexpr int64_t max_width = 1 << 22;
constexpr int64_t max_vocab = 1 << 24;

void check_bounds(std::span<const Bound> bounds, const std::string& source) {
  for (const Bound& bound : bounds)
    if (bound.value < bound.lowest || bound.value > bound.highest)
      throw ConfigError(fmt::format("{}: {} is {}; expected {} to {}",
                                    source,
                                    bound.field,
                                    bound.value,
                                    bound.lowest,
                                    bound.highest));
}

void check_sizes(const ModelConfig& c, const std::string& source) {
  const std::array<Bound, 9> bounds{
      {{"n_layers", c.n_layers, 1, 1 << 14},
       {"d_model", c.d_model, 1, 1 << 20},
       {"n_heads", c.n_heads, 1, 1 << 16},
       {"n_kv_heads", c.n_kv_heads, 1, 1 << 16},
       {"head_dim", c.head_dim, 1, max_head_dim},
       {"d_ff", c.d_ff, c.moe ? 0 : 1, max_width},
       {"vocab_size", c.vocab_size, 1, max_vocab},
       {"max_positions", c.max_positions, 1, 1LL << 31},
       {"shared KV layers", c.n_shared_kv_layers, 0, c.n_layers - 1}}};
  check_bounds(bounds, source);
  require(positive(c.norm_eps) && c.norm_eps < 1,
          source,
          fmt::format("norm_eps is {}; expected a small positive number", c.norm_eps));
  const std::array<std::pair<const char*, std::optional<double>>, 3> factors{
      {{"attention_scale", c.attention_scale},
       {"attention_softcap", c.attention_softcap},
       {"final_softcap", c.final_softcap}}};
  for (const auto& [field, value] : factors)
    require(!value || positive(*value), source, fmt::format("{} must be above 0", field));
}

// Of the window layers, and of full layers where theirs differ.
void check_heads(const ModelConfig& c,
                 int64_t n_kv_heads,
                 int64_t head_dim,
                 const std::string& source) {
  require(c.n_heads % n_kv_heads == 0,
          source,
          fmt::format("n_heads {} is not a multiple of n_kv_heads {}", c.n_heads, n_kv_heads));
  require(
      head_dim % 2 == 0, source, fmt::format("head_dim {} is odd; rope rotates pairs", head_dim));
  require(c.n_heads * head_dim <= max_width,
          source,
          fmt::format(
              "n_heads * head_dim is {}; expected at most {}", c.n_heads * head_dim, max_width));
}

void check_full_attention(const ModelConfig& c, const std::string& source) {
  const FullAttentionConfig& full = *c.full_attention;
  const std::array<Bound, 2> bounds{{{"full_attention n_kv_heads", full.n_kv_heads, 1, 1 << 16},
                                     {"full_attention head_dim", full.head_dim, 1, max_head_dim}}};
  check_bounds(bounds, source);
  check_heads(c, full.n_kv_heads, full.head_dim, source);
}

void check_mla(const ModelConfig& c, const std::string& source) {
  const MlaConfig& mla = *c.mla;
  const std::array<Bound, 5> bounds{{{"mla q_lora_rank", mla.q_lora_rank, 0, 1 << 16},
                                     {"mla kv_lora_rank", mla.kv_lora_rank, 1, 1 << 16},
                                     {"mla nope_dim", mla.nope_dim, 1, max_head_dim},
                                     {"mla rope_dim", mla.rope_dim, 2, max_head_dim},
                                     {"mla v_dim", mla.v_dim, 1, max_head_dim}}};
  check_bounds(bounds, source);
  require(mla.rope_dim % 2 == 0, source, "mla rope_dim is odd; rope rotates pairs");
  require(c.head_dim == mla.qk_dim(), source, "with mla head_dim must be nope_dim + rope_dim");
  require(c.n_kv_heads == c.n_heads, source, "with mla n_kv_heads must be n_heads");
  require(c.n_heads * mla.v_dim <= max_width, source, "mla n_heads * v_dim is too large");
  require(positive(mla.norm_eps) && mla.norm_eps < 1, source, "mla norm_eps must be small");
  require(!c.qkv_bias && !c.output_bias && !c.qk_norm && !c.full_attention && !c.attention_sinks,
          source,
          "mla takes no attention biases, no qk_norm, no sinks and no full_attention");
}

void check_routing(const MoeConfig& moe, const std::string& source) {
  const RoutingRule& rule = moe.routing;
  const std::array<Bound, 3> bounds{{{"moe top_k", rule.top_k, 1, moe.n_experts},
                                     {"moe n_groups", rule.n_groups, 1, moe.n_experts},
                                     {"moe top_k_groups", rule.top_k_groups, 1, rule.n_groups}}};
  check_bounds(bounds, source);
  require(moe.n_experts % rule.n_groups == 0,
          source,
          fmt::format("{} experts do not divide into {} groups", moe.n_experts, rule.n_groups));
  const int64_t per_group = moe.n_experts / rule.n_groups;
  require(rule.top_k <= per_group * rule.top_k_groups,
          source,
          fmt::format("top_k {} exceeds the {} experts of {} groups",
                      rule.top_k,
                      per_group * rule.top_k_groups,
                      rule.top_k_groups));
  require(rule.group_score != GroupScore::top2_sum || rule.n_groups == 1 || per_group >= 2,
          source,
          "groups scored by their best two experts need two each");
  require(positive(rule.scale), source, "moe scale must be above 0");
}

void check_moe(const ModelConfig& c, const std::string& source) {
  const MoeConfig& moe = *c.moe;
  const std::array<Bound, 3> bounds{{{"moe n_experts", moe.n_experts, 1, 1 << 14},
                                     {"moe d_ff", moe.d_ff, 1, max_width},
                                     {"moe shared_d_ff", moe.shared_d_ff, 0, max_width}}};
  check_bounds(bounds, source);
  constexpr int64_t max_experts_width = 1 << 24;
  require(moe.n_experts * moe.d_ff <= max_experts_width,
          source,
          fmt::format("moe n_experts * d_ff is {}; expected at most {}",
                      moe.n_experts * moe.d_ff,
                      max_experts_width));
  check_routing(moe, source);
  const auto& dense = moe.dense_layers;
  require(std::adjacent_find(dense.begin(), dense.end(), std::greater_equal<>()) == dense.end(),
          source,
          "moe dense_layers must ascend");
  require(dense.empty() || (dense.front() >= 0 && dense.back() < c.n_layers),
          source,
          fmt::format("moe dense_layers must be among the {} layers", c.n_layers));
  require(c.d_ff > 0 || (dense.empty() && !moe.beside_mlp),
          source,
          "d_ff is 0, but some layers have a dense MLP");
}

void check_layers(const ModelConfig& c, const std::string& source) {
  require(static_cast<int64_t>(c.layer_windows.size()) == c.n_layers,
          source,
          fmt::format(
              "layer_windows has {} entries for {} layers", c.layer_windows.size(), c.n_layers));
  for (const int64_t window : c.layer_windows)
    require(window >= 0, source, fmt::format("a window of {} tokens is negative", window));
  const auto first_shared = c.layer_windows.end() - c.n_shared_kv_layers;
  for (auto shared = first_shared; shared != c.layer_windows.end(); ++shared) {
    const bool owned = std::any_of(c.layer_windows.begin(), first_shared, [&](int64_t window) {
      return (window == 0) == (*shared == 0);
    });
    require(owned,
            source,
            fmt::format("layer {} shares keys and values, but no {} layer before the {} sharing "
                        "ones has its own",
                        shared - c.layer_windows.begin(),
                        *shared == 0 ? "full attention" : "window",
                        c.n_shared_kv_layers));
  }
}

void check_per_layer_input(const PerLayerInputConfig& input, const std::string& source) {
  const std::array<Bound, 2> bounds{
      {{"per_layer_input dim", input.dim, 1, 1 << 16},
       {"per_layer_input vocab_size", input.vocab_size, 1, max_vocab}}};
  check_bounds(bounds, source);
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

void check_family(const ModelConfig& c, const std::string& source) {
  const Family* family = find_family(c.family);
  if (family == nullptr)
    throw ConfigError(fmt::format("{}: model family {} is not supported; supported: {}",
                                  source,
                                  in_quotes(c.family),
                                  family_names()));
  require(family->has_mla == c.mla.has_value(),
          source,
          fmt::format("{} {} latent attention", c.family, family->has_mla ? "needs" : "has no"));
  require(family->moe == Family::Moe::optional ||
              (family->moe == Family::Moe::always) == c.moe.has_value(),
          source,
          fmt::format("{} {} experts", c.family, c.moe ? "has no" : "needs"));
}

}  // namespace

void validate(const ModelConfig& config, const std::string& source) {
  check_family(config, source);
  check_sizes(config, source);
  check_heads(config, config.n_kv_heads, config.head_dim, source);
  if (config.full_attention) check_full_attention(config, source);
  if (config.mla) check_mla(config, source);
  if (config.moe) check_moe(config, source);
  if (config.per_layer_input) check_per_layer_input(*config.per_layer_input, source);
  check_rope(config.rope, source);
  if (config.window_rope) check_rope(*config.window_rope, source);
  check_layers(config, source);
  check_ids(config, source);
}

}  // namespace testbed
