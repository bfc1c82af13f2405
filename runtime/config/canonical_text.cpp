// RunConfig and ModelConfig as JSON with sorted keys.
#include <nlohmann/json.hpp>

#include "runtime/config/run_config.hpp"

namespace testbed {
namespace {

using nlohmann::json;

template <typename T>
json optional(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

template <typename T, typename ToJson>
json optional(const std::optional<T>& value, const ToJson& to_json) {
  return value ? to_json(*value) : json(nullptr);
}

json rope_json(const RopeConfig& rope) {
  return {{"kind", static_cast<int>(rope.kind)},
          {"theta", rope.theta},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_positions", rope.original_max_positions},
          {"beta_fast", rope.beta_fast},
          {"beta_slow", rope.beta_slow},
          {"truncate", rope.truncate},
          {"attention_factor", optional(rope.attention_factor)},
          {"mscale", optional(rope.mscale)},
          {"mscale_all_dim", optional(rope.mscale_all_dim)},
          {"rotary_fraction", rope.rotary_fraction},
          {"interleaved", rope.interleaved}};
}

json full_attention_json(const FullAttentionConfig& full) {
  return {{"n_kv_heads", full.n_kv_heads},
          {"head_dim", full.head_dim},
          {"key_is_value", full.key_is_value}};
}

json mla_json(const MlaConfig& mla) {
  return {{"q_lora_rank", mla.q_lora_rank},
          {"kv_lora_rank", mla.kv_lora_rank},
          {"nope_dim", mla.nope_dim},
          {"rope_dim", mla.rope_dim},
          {"v_dim", mla.v_dim},
          {"norm_eps", mla.norm_eps}};
}

json routing_json(const RoutingRule& rule) {
  return {{"top_k", rule.top_k},
          {"score", static_cast<int>(rule.score)},
          {"renormalise", rule.renormalise},
          {"scale", rule.scale},
          {"n_groups", rule.n_groups},
          {"top_k_groups", rule.top_k_groups},
          {"group_score", static_cast<int>(rule.group_score)}};
}

json moe_json(const MoeConfig& moe) {
  return {{"n_experts", moe.n_experts},
          {"d_ff", moe.d_ff},
          {"shared_d_ff", moe.shared_d_ff},
          {"dense_layers", moe.dense_layers},
          {"routing", routing_json(moe.routing)},
          {"selection_bias", moe.selection_bias},
          {"router_bias", moe.router_bias},
          {"expert_bias", moe.expert_bias},
          {"beside_mlp", moe.beside_mlp}};
}

json per_layer_input_json(const PerLayerInputConfig& input) {
  return {{"dim", input.dim}, {"vocab_size", input.vocab_size}};
}

json model_json(const ModelConfig& model) {
  return {{"name", model.name},
          {"family", model.family},
          {"n_layers", model.n_layers},
          {"d_model", model.d_model},
          {"n_heads", model.n_heads},
          {"n_kv_heads", model.n_kv_heads},
          {"head_dim", model.head_dim},
          {"d_ff", model.d_ff},
          {"vocab_size", model.vocab_size},
          {"max_positions", model.max_positions},
          {"norm_eps", model.norm_eps},
          {"tied_embeddings", model.tied_embeddings},
          {"qkv_bias", model.qkv_bias},
          {"output_bias", model.output_bias},
          {"mlp_bias", model.mlp_bias},
          {"qk_norm", model.qk_norm},
          {"v_norm", model.v_norm},
          {"attention_sinks", model.attention_sinks},
          {"norms", static_cast<int>(model.norms)},
          {"norm_adds_one", model.norm_adds_one},
          {"activation", static_cast<int>(model.activation)},
          {"scaled_embedding", model.scaled_embedding},
          {"layer_scalars", model.layer_scalars},
          {"attention_scale", optional(model.attention_scale)},
          {"attention_softcap", optional(model.attention_softcap)},
          {"final_softcap", optional(model.final_softcap)},
          {"rope", rope_json(model.rope)},
          {"window_rope", optional(model.window_rope, rope_json)},
          {"layer_windows", model.layer_windows},
          {"full_attention", optional(model.full_attention, full_attention_json)},
          {"n_shared_kv_layers", model.n_shared_kv_layers},
          {"double_wide_shared_mlp", model.double_wide_shared_mlp},
          {"mla", optional(model.mla, mla_json)},
          {"moe", optional(model.moe, moe_json)},
          {"per_layer_input", optional(model.per_layer_input, per_layer_input_json)},
          {"eos_ids", model.eos_ids},
          {"bos_id", optional(model.bos_id)},
          {"stored_dtype", dtype_name(model.stored_dtype)}};
}

json parallel_json(const ParallelConfig& p) {
  return {{"tp", p.tp},
          {"pp", p.pp},
          {"cp", p.cp},
          {"dp", optional(p.dp)},
          {"ep", p.ep},
          {"microbatches", optional(p.microbatches)},
          {"virtual_stages", p.virtual_stages},
          {"cp_layout", static_cast<int>(p.cp_placement)},
          {"expert_exchange", static_cast<int>(p.expert_exchange)},
          {"tp_comm", static_cast<int>(p.tp_comm)}};
}

json cluster_json(const ClusterConfig& c) {
  return {{"name", optional(c.name)},
          {"link_gb_s", optional(c.link_gb_s)},
          {"link_us", optional(c.link_us)},
          {"algorithm", optional(c.algorithm)}};
}

json workload_json(const WorkloadConfig& w) {
  return {{"batch", w.batch},
          {"prompt_tokens", w.prompt_tokens},
          {"gen_tokens", w.gen_tokens},
          {"context", w.context},
          {"prompt", optional(w.prompt)},
          {"prompt_ids", w.prompt_ids},
          {"prompts_file", optional(w.prompts_file)}};
}

json inject_json(const std::vector<Injection>& inject) {
  json list = json::array();
  for (const Injection& f : inject) {
    if (f.kind == Injection::Kind::delay) {
      list.push_back({{"rank", f.rank}, {"us", f.delay_us}, {"every", f.every}});
      continue;
    }
    list.push_back({{"kind", injection_name(f.kind)},
                    {"rank", f.rank},
                    {"peer", f.peer},
                    {"at", f.at},
                    {"bit", f.bit},
                    {"gb_s", f.gb_s},
                    {"factor", f.factor}});
  }
  return list;
}

json run_json(const RunConfig& run) {
  return {
      {"model", run.model},
      {"weights", optional(run.weights)},
      {"layers", optional(run.layers)},
      {"parallel", parallel_json(run.parallel)},
      {"device", static_cast<int>(run.device)},
      {"layout", static_cast<int>(run.layout)},
      {"allow_shared_gpu", run.allow_shared_gpu},
      {"cuda_graphs", run.cuda_graphs},
      {"cluster", cluster_json(run.cluster)},
      {"workload", workload_json(run.workload)},
      {"weight_dtype", run.weight_format ? json(format_name(*run.weight_format)) : json("auto")},
      {"compute_dtype", dtype_name(run.compute_dtype)},
      {"seed", run.sampling.seed},
      {"temperature", run.sampling.temperature},
      {"top_p", run.sampling.top_p},
      {"ignore_eos", run.sampling.ignore_eos},
      {"warmup", run.warmup},
      {"repeats", run.repeats},
      {"check", static_cast<int>(run.check)},
      {"inject", inject_json(run.inject)},
      {"threads", optional(run.threads)},
      {"kv_block_size", run.kv_block_size},
      {"max_step_tokens", optional(run.max_step_tokens)},
      {"deterministic", run.deterministic}};
}

}  // namespace

std::string_view weight_dtype_name(const std::optional<WeightFormat>& format) {
  if (!format) return "auto";
  switch (format->coding) {
    case WeightCoding::plain:
      return dtype_name(format->dtype);
    case WeightCoding::int8:
      return "int8";
    case WeightCoding::int4:
      return "int4";
    case WeightCoding::fp8:
      return "fp8";
  }
  check_failed("known coding", __FILE__, __LINE__);
}

std::string canonical_text(const RunConfig& run, const ModelConfig& model) {
  const json document = {{"run", run_json(run)}, {"model", model_json(model)}};
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace testbed
