#include "runtime/report/json.hpp"

#include <nlohmann/json.hpp>

#include "runtime/report/json_parts.hpp"
#include "runtime/report/json_phase.hpp"

namespace testbed {

namespace report_json {

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

}  // namespace report_json

using report_json::add_repeated;
using report_json::device_counters_json;
using report_json::energy_json;
using report_json::fingerprint_json;
using report_json::Json;
using report_json::phase_json;
using report_json::summary_json;

namespace {

Json parallel_json(const ParallelRecord& p) {
  return {{"tp", p.tp},
          {"pp", p.pp},
          {"cp", p.cp},
          {"dp", p.dp},
          {"ep", p.ep},
          {"microbatches", p.microbatches},
          {"virtual_stages", p.virtual_stages},
          {"cp_placement", p.cp_placement},
          {"expert_exchange", p.expert_exchange},
          {"tp_comm", p.tp_comm}};
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
            {"cp", c.against_one_rank.cp},
            {"ep", c.against_one_rank.ep},
            {"compute_dtype", c.against_one_rank.compute_dtype},
            {"first_difference", or_null(c.against_one_rank.first_difference)}}},
          {"replicas_bitwise_equal", or_null(c.replicas_bitwise_equal)}};
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
  json["device_counters"] = list(record.device_counters, device_counters_json);
  json["energy"] = energy_json(record.energy);
  json["fingerprint"] = fingerprint_json(run.fingerprint);
  return json;
}

}  // namespace

std::string to_json(const RunRecord& record) {
  return record_json(record).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace testbed
