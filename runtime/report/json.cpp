#include "runtime/report/json.hpp"

#include <nlohmann/json.hpp>

#include "runtime/report/json_parts.hpp"

namespace testbed {

namespace {

using Json = nlohmann::ordered_json;

// The median as the headline, the repeats it came from beside it.
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

Json parallel_json(const ParallelRecord& p) {
  return {{"tp", p.tp},
          {"pp", p.pp},
          {"cp", p.cp},
          {"dp", p.dp},
          {"ep", p.ep},
          {"microbatches", p.microbatches},
          {"virtual_stages", p.virtual_stages}};
}

Json request_json(const RequestRecord& r) {
  return {{"prompt_tokens", r.prompt_tokens},
          {"generated_tokens", r.generated_tokens},
          {"ids", r.ids},
          {"text", or_null(r.text)},
          {"ttft_ms", json_number(r.ttft_ms)},
          {"tpot_ms", json_number(r.tpot_ms)}};
}

Json timing_json(const TimingRecord& t) {
  Json json;
  add_repeated(json, "ttft_ms", t.ttft_ms);
  add_repeated(json, "tpot_ms", t.tpot_ms);
  json["step_ms"] = t.step_ms ? summary_json(*t.step_ms) : Json(nullptr);
  json["step_phase"] = t.step_phase;
  add_repeated(json, "prefill_tokens_per_s", t.prefill_tokens_per_s);
  add_repeated(json, "decode_tokens_per_s", t.decode_tokens_per_s);
  return json;
}

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

Json predicted_json(const std::optional<PredictedRecord>& p) {
  if (!p) return nullptr;
  return {{"cluster", p->cluster},
          {"step_ms", json_number(p->step_ms)},
          {"shares", shares_json(p->shares)}};
}

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
  json["ring"] = nullptr;
  json["experts"] = nullptr;
  return json;
}

Json memory_json(const MemoryRecord& m) {
  return {{"rank", m.rank},
          {"weights_bytes", m.weights_bytes},
          {"kv_bytes_per_token", m.kv_bytes_per_token},
          {"kv_pool_bytes", m.kv_pool_bytes},
          {"kv_used_bytes", m.kv_used_bytes},
          {"kv_waste_bytes", m.kv_waste_bytes},
          {"workspace_bytes", m.workspace_bytes},
          {"capacity_bytes", m.capacity_bytes}};
}

Json checks_json(const ChecksRecord& c) {
  return {{"against_one_rank",
           {{"mode", c.against_one_rank.mode},
            {"compared", c.against_one_rank.compared},
            {"max_abs_diff", json_number(c.against_one_rank.max_abs_diff)},
            {"tolerance", json_number(c.against_one_rank.tolerance)},
            {"layers", c.against_one_rank.layers},
            {"tp", c.against_one_rank.tp},
            {"pp", c.against_one_rank.pp},
            {"virtual_stages", c.against_one_rank.virtual_stages},
            {"first_difference", or_null(c.against_one_rank.first_difference)}}},
          {"replicas_bitwise_equal", or_null(c.replicas_bitwise_equal)}};
}

Json fingerprint_json(const FingerprintRecord& f) {
  Json json{{"hosts", f.hosts}, {"devices", f.devices}, {"driver", or_null(f.driver)}};
  json["libraries"] = Json::object();
  for (const auto& [name, version] : f.libraries) json["libraries"][name] = version;
  json["binding"] = f.binding;
  json["environment"] = Json::object();
  for (const auto& [name, value] : f.environment) json["environment"][name] = value;
  json["config_hash"] = f.config_hash;
  json["version"] = f.version;
  return json;
}

Json peak_json(const PeakRecord& p) {
  Json json{{"memory_domain", p.memory_domain}, {"ranks", p.ranks}};
  add_repeated(json, "read_bytes_per_s", p.read_bytes_per_s);
  json["peak_flops"] = json_number(p.peak_flops);
  json["llc_bytes"] = p.llc_bytes;
  return json;
}

Json clock_json(const ClockRecord& c) {
  return {{"rank", c.rank}, {"offset_ns", c.offset_ns}, {"error_ns", c.error_ns}};
}

Json record_json(const RunRecord& record) {
  const RunDescription& run = record.run;
  Json json{{"schema", RunRecord::schema},
            {"device", run.device},
            {"simulated", run.simulated},
            {"labels", run.labels},
            {"model", run.model},
            {"layers", run.layers},
            {"world_size", record.world_size},
            {"weight_dtype", run.weight_dtype},
            {"compute_dtype", run.compute_dtype},
            {"parallel", parallel_json(run.parallel)}};
  json["options"] = Json::object();
  for (const auto& [name, value] : run.options) json["options"][name] = value;
  json["requests"] = list(run.requests, request_json);
  json["timing"] = timing_json(record.timing);
  json["phases"] = Json::object();
  for (const PhaseRecord& phase : record.phases) {
    json["phases"][std::string(phase_name(phase.phase))] = phase_json(phase);
  }
  json["memory"] = list(run.memory, memory_json);
  json["checks"] = checks_json(run.checks);
  json["instrument_overhead"] = json_number(record.instrument_overhead);
  json["peaks"] = list(record.peaks, peak_json);
  json["clocks"] = list(record.clocks, clock_json);
  json["fingerprint"] = fingerprint_json(run.fingerprint);
  return json;
}

}  // namespace

std::string to_json(const RunRecord& record) {
  return record_json(record).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace testbed
