// A phase in the JSON record, and the figures that several parts of it are made of.
#include "runtime/report/json_phase.hpp"

#include <nlohmann/json.hpp>

#include "runtime/report/json_parts.hpp"

namespace testbed::report_json {

void add_repeated(Json& json, const std::string& name, const Repeated& figure) {
  json[name] = figure.empty() ? Json(nullptr) : json_number(figure.median());
  if (figure.empty()) {
    json[name + "_repeats"] = nullptr;
    return;
  }
  json[name + "_repeats"] = {
      {"values", list(figure.repeats, [](double x) { return json_number(x); })},
      {"min", json_number(figure.min())},
      {"max", json_number(figure.max())},
      {"spread", json_number(figure.spread())}};
}

Json summary_json(const Summary& s) {
  return {{"median", json_number(s.median)},
          {"p90", json_number(s.p90)},
          {"p99", json_number(s.p99)},
          {"min", json_number(s.min)},
          {"max", json_number(s.max)},
          {"n", s.n}};
}

namespace {

Json shares_json(const Shares& s) {
  return {{"weights", json_number(s.weights)},
          {"kv", json_number(s.kv)},
          {"compute", json_number(s.compute)},
          {"interconnect", json_number(s.interconnect)},
          {"wait", json_number(s.wait)},
          {"bubble", json_number(s.bubble)},
          {"overhead", json_number(s.overhead)}};
}

Json roofline_json(const std::optional<RooflineRecord>& r) {
  if (!r) return nullptr;
  return {{"intensity_flop_per_byte", json_number(r->intensity_flop_per_byte)},
          {"ridge_flop_per_byte", json_number(r->ridge_flop_per_byte)},
          {"attainable_flops", json_number(r->attainable_flops)},
          {"achieved_flops", json_number(r->achieved_flops)},
          {"regime", r->regime}};
}

Json domain_json(const MemoryDomainRecord& d) {
  return {{"name", d.name},
          {"ranks", d.ranks},
          {"bytes_per_step", d.bytes_per_step},
          {"working_set_bytes", d.working_set_bytes},
          {"cache_resident", d.cache_resident},
          {"peak_gb_s", json_number(d.peak_bytes_per_s * 1e-9)},
          {"mbu", json_number(d.mbu)}};
}

Json device_json(const DevicePhaseRecord& d) {
  return {{"rank", d.rank},
          {"tp", d.tp},
          {"pp", d.pp},
          {"cp", d.cp},
          {"dp", d.dp},
          {"host", d.host},
          {"steps", d.steps},
          {"weight_bytes", d.weight_bytes},
          {"kv_bytes", d.kv_bytes},
          {"kv_write_bytes", d.kv_write_bytes},
          {"flops", d.flops},
          {"step_ms", json_number(d.step_ms)},
          {"weights_ms", json_number(d.weights_ms)},
          {"kv_ms", json_number(d.kv_ms)},
          {"compute_ms", json_number(d.compute_ms)},
          {"wire_ms", json_number(d.wire_ms)},
          {"wait_ms", json_number(d.wait_ms)},
          {"bubble_ms", json_number(d.bubble_ms)},
          {"overhead_ms", json_number(d.overhead_ms)}};
}

Json late_json(const LateRank& l) {
  return {{"rank", l.rank},
          {"count", l.count},
          {"median_us", json_number(l.median_us)},
          {"total_us", json_number(l.total_us)}};
}

Json collective_json(const CollectiveRecord& c) {
  return {{"op", c.op},
          {"axis", c.axis},
          {"site", c.site},
          {"n", c.n},
          {"groups", c.groups},
          {"calls", c.calls},
          {"per_step", json_number(c.per_step)},
          {"uniform", c.uniform},
          {"payload_bytes", c.payload_bytes},
          {"payload_bytes_per_step", c.payload_bytes_per_step},
          {"wire_bytes_per_device", c.wire_bytes_per_device},
          {"algorithm", c.algorithm},
          {"transport", c.transport},
          {"wait_us", json_number(c.wait_us)},
          {"wire_us",
           {{"median", json_number(c.wire_us.median)},
            {"p90", json_number(c.wire_us.p90)},
            {"max", json_number(c.wire_us.max)}}},
          {"wire_is_bound", c.wire_is_bound},
          {"exposed_us", json_number(c.exposed_us)},
          {"algbw_gb_s", json_number(c.algbw_gb_s)},
          {"busbw_gb_s", json_number(c.busbw_gb_s)},
          {"unresolved", c.unresolved},
          {"latest", list(c.latest, late_json)}};
}

Json layer_json(const LayerRecord& l) {
  return {{"layer", l.layer},
          {"weight_bytes", l.weight_bytes},
          {"kv_bytes", l.kv_bytes},
          {"all_reduce_payload_bytes", l.all_reduce_payload_bytes},
          {"all_reduce_wire_bytes", l.all_reduce_wire_bytes},
          {"reduce_scatter_payload_bytes", l.reduce_scatter_payload_bytes},
          {"all_gather_payload_bytes", l.all_gather_payload_bytes},
          {"memory_ms", json_number(l.memory_ms)},
          {"wire_ms", json_number(l.wire_ms)},
          {"wait_ms", json_number(l.wait_ms)}};
}

Json stage_json(const StageRecord& s) {
  return {{"stage", s.stage},
          {"layers", s.layers},
          {"busy_ms", json_number(s.busy_ms)},
          {"transfer_ms", json_number(s.transfer_ms)},
          {"idle_ms", json_number(s.idle_ms)}};
}

Json pipeline_json(const std::optional<PipelineRecord>& p) {
  if (!p) return nullptr;
  return {{"flushed", p->flushed},
          {"bubble_measured", json_number(p->bubble_measured)},
          {"bubble_formula", json_number(p->bubble_formula)},
          {"bubble_from_stages", json_number(p->bubble_from_stages)},
          {"effective_microbatches", p->effective_microbatches},
          {"stages", list(p->stages, stage_json)}};
}

Json ring_step_json(const RingStepRecord& s) {
  return {{"step", s.step},
          {"compute_ms", json_number(s.compute_ms)},
          {"transfer_ms", json_number(s.transfer_ms)},
          {"hidden_ms", json_number(s.hidden_ms)},
          {"exposed_ms", json_number(s.exposed_ms)},
          {"wait_ms", json_number(s.wait_ms)},
          {"sent_bytes", s.sent_bytes},
          {"transfer_is_bound", s.transfer_is_bound}};
}

Json expert_layer_json(const ExpertLayerRecord& l) {
  return {{"layer", l.layer},
          {"passes", l.passes},
          {"tokens_per_expert", l.tokens_per_expert},
          {"touched", json_number(l.touched)},
          {"touched_uniform", json_number(l.touched_uniform)},
          {"touched_bytes", l.touched_bytes},
          {"balance", json_number(l.balance)}};
}

Json experts_json(const std::optional<ExpertsRecord>& e) {
  if (!e) return nullptr;
  return {{"n_experts", e->n_experts},
          {"top_k", e->top_k},
          {"exchange", e->exchange},
          {"per_layer", list(e->per_layer, expert_layer_json)},
          {"all_to_all_bytes", e->all_to_all_bytes}};
}

Json predicted_json(const std::optional<PredictedRecord>& p) {
  if (!p) return nullptr;
  return {{"cluster", p->cluster},
          {"step_ms", json_number(p->step_ms)},
          {"shares", shares_json(p->shares)}};
}

}  // namespace

Json phase_json(const PhaseRecord& p) {
  Json json{{"steps", p.steps}};
  add_repeated(json, "step_ms", p.step_ms);
  json["step_ms_summary"] = summary_json(p.step_ms_summary);
  json["breakdown_step_ms"] = json_number(p.breakdown_step_ms);
  json["instrument_overhead"] = json_number(p.instrument_overhead);
  json["bound_by"] = p.bound_by;
  json["shares"] = shares_json(p.shares);
  json["shares_min"] = shares_json(p.shares_min);
  json["shares_max"] = shares_json(p.shares_max);
  json["mfu"] = json_number(p.mfu);
  json["mbu"] = json_number(p.mbu);
  json["cache_resident"] = p.cache_resident;
  json["flops"] = p.flops;
  json["model_flops"] = p.model_flops;
  json["weight_bytes"] = p.weight_bytes;
  json["kv_bytes"] = p.kv_bytes;
  json["kv_write_bytes"] = p.kv_write_bytes;
  json["flops_total"] = p.flops_total;
  json["model_flops_total"] = p.model_flops_total;
  add_repeated(json, "duration_s", p.duration_s);
  json["weight_bytes_total"] = p.weight_bytes_total;
  json["kv_bytes_total"] = p.kv_bytes_total;
  json["roofline"] = roofline_json(p.roofline);
  json["memory_domains"] = list(p.memory_domains, domain_json);
  json["predicted"] = predicted_json(p.predicted);
  json["per_device"] = list(p.per_device, device_json);
  json["collectives"] = list(p.collectives, collective_json);
  json["layers"] = list(p.layers, layer_json);
  json["outside_layers"] = p.outside_layers ? layer_json(*p.outside_layers) : Json(nullptr);
  json["pipeline"] = pipeline_json(p.pipeline);
  json["ring"] = p.ring.empty() ? Json(nullptr) : list(p.ring, ring_step_json);
  json["experts"] = experts_json(p.experts);
  return json;
}

}  // namespace testbed::report_json
