// deepseek_v2 and deepseek_v3. The multi-token prediction layers of v3 are not part of the model.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "runtime/config/hf_family.hpp"
#include "runtime/config/hf_rope.hpp"

namespace testbed {
namespace {

int64_t size_or(const JsonObject& config, std::string_view key, int64_t fallback) {
  return config.find_int(key, 1, max_size).value_or(fallback);
}

// The class derives these from others, and writes them.
void refuse_contradiction(const JsonObject& config, std::string_view key, int64_t derived) {
  const auto given = config.find_int(key, 0, max_size);
  if (given && *given != derived)
    config.fail(key, fmt::format("{} contradicts the other sizes, which give {}", *given, derived));
}

void read_attention(const JsonObject& config, ModelConfig& model) {
  MlaConfig& mla = model.mla.emplace();
  mla.q_lora_rank = int_or_null(config, "q_lora_rank", 1536).value_or(0);
  mla.kv_lora_rank = size_or(config, "kv_lora_rank", 512);
  mla.nope_dim = size_or(config, "qk_nope_head_dim", 128);
  mla.rope_dim = size_or(config, "qk_rope_head_dim", 64);
  mla.v_dim = size_or(config, "v_head_dim", 128);
  mla.norm_eps = 1e-6;  // the norms' own default: rms_norm_eps does not reach them
  refuse_contradiction(config, "head_dim", mla.rope_dim);  // the class's name for the rotated part
  refuse_contradiction(config, "qk_head_dim", mla.qk_dim());
  refuse_contradiction(config, "num_key_value_heads", model.n_heads);
  model.n_kv_heads = model.n_heads;
  model.head_dim = mla.qk_dim();
  require_value(config, "attention_bias", false);
  model.rope = read_hf_rope(config, model.max_positions);
  model.layer_windows.assign(static_cast<size_t>(model.n_layers), 0);
}

struct MoeDefaults {
  int64_t n_experts, d_ff, n_shared, first_dense;
  double scale;
};

void read_experts(const JsonObject& config, const MoeDefaults& defaults, ModelConfig& model) {
  require_value(config, "moe_layer_freq", 1);
  MoeConfig& moe = model.moe.emplace();
  moe.n_experts = size_or(config, "n_routed_experts", defaults.n_experts);
  moe.d_ff = size_or(config, "moe_intermediate_size", defaults.d_ff);
  moe.shared_d_ff = int_or_null(config, "n_shared_experts", defaults.n_shared).value_or(0);
  constexpr int64_t max_shared = 1 << 16;
  if (moe.shared_d_ff > max_shared) config.fail("n_shared_experts", "is too large");
  moe.shared_d_ff *= moe.d_ff;
  const int64_t n_dense =
      std::min(model.n_layers,
               int_or_null(config, "first_k_dense_replace", defaults.first_dense).value_or(0));
  moe.dense_layers.resize(static_cast<size_t>(n_dense));
  std::iota(moe.dense_layers.begin(), moe.dense_layers.end(), 0);
  moe.routing.scale = config.find_number("routed_scaling_factor").value_or(defaults.scale);
}

void read_groups(const JsonObject& config,
                 int64_t n_groups,
                 int64_t top_k_groups,
                 RoutingRule& rule) {
  rule.n_groups = int_or_null(config, "n_group", n_groups).value_or(1);
  rule.top_k_groups = int_or_null(config, "topk_group", top_k_groups).value_or(1);
}

}  // namespace

// norm_topk_prob is read by the class and used nowhere: its weights are never renormalised.
void read_hf_deepseek_v2(const JsonObject& config, ModelConfig& model) {
  require_value(config, "hidden_act", "silu");
  require_value(config, "mlp_bias", false);
  require_value(config, "scoring_func", "softmax");
  read_attention(config, model);
  model.rope.interleaved = true;
  read_experts(config,
               {.n_experts = 64, .d_ff = 1407, .n_shared = 2, .first_dense = 0, .scale = 1.0},
               model);
  RoutingRule& rule = model.moe->routing;
  rule.top_k = config.get_int("num_experts_per_tok", 1, max_size);
  const std::string method = config.find_string("topk_method").value_or("greedy");
  if (method == "greedy") return;
  if (method != "group_limited_greedy")
    config.fail(
        "topk_method",
        fmt::format("{} is not supported; supported: greedy, group_limited_greedy", shown(method)));
  read_groups(config, 1, 1, rule);
  rule.group_score = GroupScore::maximum;
}

void read_hf_deepseek_v3(const JsonObject& config, ModelConfig& model) {
  require_value(config, "hidden_act", "silu");
  require_value(config, "scoring_func", "sigmoid");
  require_value(config, "topk_method", "noaux_tc");
  read_attention(config, model);
  model.rope.interleaved = config.find_bool("rope_interleave").value_or(true);
  read_experts(config,
               {.n_experts = 256, .d_ff = 2048, .n_shared = 1, .first_dense = 3, .scale = 2.5},
               model);
  model.moe->selection_bias = true;
  RoutingRule& rule = model.moe->routing;
  rule.top_k = size_or(config, "num_experts_per_tok", 8);
  rule.score = RouterScore::sigmoid;
  rule.renormalise = config.find_bool("norm_topk_prob").value_or(true);
  read_groups(config, 8, 4, rule);
  rule.group_score = GroupScore::top2_sum;
}

}  // namespace testbed
