#include "runtime/config/toml_model_parts.hpp"

#include <algorithm>
#include <array>

namespace testbed {
namespace {

using Keys = std::vector<std::string_view>;

// A kind takes its own keys and no others: a factor under kind "plain" would do nothing.
Keys keys_of(RopeKind kind) {
  Keys keys{"kind", "theta", "interleaved"};
  // Not insert(): g++ 12 at -O3 sees an overflow in it that is not there.
  const auto add = [&](const Keys& more) {
    keys.reserve(keys.size() + more.size());
    for (const std::string_view key : more) keys.push_back(key);
  };
  if (kind != RopeKind::plain) add({"factor"});
  if (kind == RopeKind::proportional) add({"rotary_fraction"});
  if (kind == RopeKind::llama3 || kind == RopeKind::yarn) add({"original_max_positions"});
  if (kind == RopeKind::llama3) add({"low_freq_factor", "high_freq_factor"});
  if (kind == RopeKind::yarn)
    add({"beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"});
  return keys;
}

constexpr std::array<std::string_view, 14> rope_keys{"kind",
                                                     "theta",
                                                     "factor",
                                                     "low_freq_factor",
                                                     "high_freq_factor",
                                                     "original_max_positions",
                                                     "beta_fast",
                                                     "beta_slow",
                                                     "truncate",
                                                     "attention_factor",
                                                     "mscale",
                                                     "mscale_all_dim",
                                                     "rotary_fraction",
                                                     "interleaved"};

void refuse_idle_keys(const TomlTable& table, RopeKind kind) {
  const Keys allowed = keys_of(kind);
  for (const std::string_view key : rope_keys)
    if (table.find(key) != nullptr &&
        std::find(allowed.begin(), allowed.end(), key) == allowed.end())
      table.fail_at(key, fmt::format("{} has no meaning for this rope kind", key));
}

void read_yarn(const TomlTable& table, RopeConfig& rope) {
  rope.beta_fast = table.find_number("beta_fast").value_or(rope.beta_fast);
  rope.beta_slow = table.find_number("beta_slow").value_or(rope.beta_slow);
  rope.truncate = table.get_bool("truncate", true);
  rope.attention_factor = table.find_number("attention_factor");
  rope.mscale = table.find_number("mscale");
  rope.mscale_all_dim = table.find_number("mscale_all_dim");
}

std::vector<int64_t> read_layers(const TomlTable& table, std::string_view key) {
  const toml::node* node = table.find(key);
  if (node == nullptr) return {};
  if (!node->is_array()) table.fail_at(key, fmt::format("{} must be an array of layers", key));
  std::vector<int64_t> layers;
  layers.reserve(node->as_array()->size());
  for (const toml::node& layer : *node->as_array()) {
    const auto index = layer.value_exact<int64_t>();
    if (!index) table.fail(layer.source().begin, fmt::format("{} must be layers", key));
    layers.push_back(*index);
  }
  return layers;
}

RoutingRule read_routing(const TomlTable& table) {
  return {.top_k = table.get_int("top_k"),
          .score = read_name<RouterScore>(table,
                                          "score",
                                          {{"softmax", RouterScore::softmax},
                                           {"top_k_softmax", RouterScore::top_k_softmax},
                                           {"sigmoid", RouterScore::sigmoid}}),
          .renormalise = table.get_bool("renormalise", false),
          .scale = table.find_number("scale").value_or(1.0),
          .n_groups = table.find_int("n_groups").value_or(1),
          .top_k_groups = table.find_int("top_k_groups").value_or(1),
          .group_score = read_name<GroupScore>(
              table,
              "group_score",
              {{"maximum", GroupScore::maximum}, {"top2_sum", GroupScore::top2_sum}})};
}

}  // namespace

RopeConfig read_toml_rope(const toml::table& toml, const std::string& source) {
  const TomlTable table(toml, source, rope_keys);
  RopeConfig rope;
  rope.kind = read_name<RopeKind>(table,
                                  "kind",
                                  {{"plain", RopeKind::plain},
                                   {"linear", RopeKind::linear},
                                   {"llama3", RopeKind::llama3},
                                   {"yarn", RopeKind::yarn},
                                   {"proportional", RopeKind::proportional}});
  refuse_idle_keys(table, rope.kind);
  rope.theta = table.get_number("theta");
  rope.interleaved = table.get_bool("interleaved", false);
  if (rope.kind == RopeKind::plain) return rope;
  if (rope.kind == RopeKind::proportional) {
    rope.rotary_fraction = table.get_number("rotary_fraction");
    rope.factor = table.find_number("factor").value_or(1.0);
    return rope;
  }
  rope.factor = table.get_number("factor");
  if (rope.kind == RopeKind::linear) return rope;
  rope.original_max_positions = table.get_int("original_max_positions");
  if (rope.kind == RopeKind::yarn) {
    read_yarn(table, rope);
    return rope;
  }
  rope.low_freq_factor = table.get_number("low_freq_factor");
  rope.high_freq_factor = table.get_number("high_freq_factor");
  return rope;
}

FullAttentionConfig read_toml_full_attention(const toml::table& toml, const std::string& source) {
  const Keys keys{"n_kv_heads", "head_dim", "key_is_value"};
  const TomlTable table(toml, source, keys);
  return {.n_kv_heads = table.get_int("n_kv_heads"),
          .head_dim = table.get_int("head_dim"),
          .key_is_value = table.get_bool("key_is_value", false)};
}

MlaConfig read_toml_mla(const toml::table& toml, const std::string& source) {
  const Keys keys{"q_lora_rank", "kv_lora_rank", "nope_dim", "rope_dim", "v_dim", "norm_eps"};
  const TomlTable table(toml, source, keys);
  MlaConfig mla;
  mla.q_lora_rank = table.find_int("q_lora_rank").value_or(0);
  // Bounded before they are added up; validate() has the tighter bounds.
  constexpr int64_t most = 1 << 20;
  mla.kv_lora_rank = table.get_int_in("kv_lora_rank", 1, most);
  mla.nope_dim = table.get_int_in("nope_dim", 1, most);
  mla.rope_dim = table.get_int_in("rope_dim", 1, most);
  mla.v_dim = table.get_int_in("v_dim", 1, most);
  mla.norm_eps = table.find_number("norm_eps").value_or(mla.norm_eps);
  return mla;
}

MoeConfig read_toml_moe(const toml::table& toml, const std::string& source) {
  const Keys keys{"n_experts",
                  "d_ff",
                  "shared_d_ff",
                  "dense_layers",
                  "top_k",
                  "score",
                  "renormalise",
                  "scale",
                  "n_groups",
                  "top_k_groups",
                  "group_score",
                  "selection_bias",
                  "router_bias",
                  "expert_bias",
                  "beside_mlp"};
  const TomlTable table(toml, source, keys);
  MoeConfig moe;
  moe.n_experts = table.get_int("n_experts");
  moe.d_ff = table.get_int("d_ff");
  moe.shared_d_ff = table.find_int("shared_d_ff").value_or(0);
  moe.dense_layers = read_layers(table, "dense_layers");
  moe.routing = read_routing(table);
  moe.selection_bias = table.get_bool("selection_bias", false);
  moe.router_bias = table.get_bool("router_bias", false);
  moe.expert_bias = table.get_bool("expert_bias", false);
  moe.beside_mlp = table.get_bool("beside_mlp", false);
  return moe;
}

PerLayerInputConfig read_toml_per_layer_input(const toml::table& toml, const std::string& source) {
  const Keys keys{"dim", "vocab_size"};
  const TomlTable table(toml, source, keys);
  return {.dim = table.get_int("dim"), .vocab_size = table.get_int("vocab_size")};
}

}  // namespace testbed
