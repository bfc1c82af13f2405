// An acceptance as JSON: all of it.
#include <nlohmann/json.hpp>

#include "runtime/accept/gates.hpp"
#include "runtime/report/acceptance_parts.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "runtime/report/json_parts.hpp"
#include "runtime/report/json_phase.hpp"

namespace testbed {

namespace {

using acceptance_report::summary_of;
using report_json::Json;

// What is not set holds for all, and is left out.
Json key_json(const FigureKey& key) {
  Json json{{"figure", key.figure}};
  if (key.op) json["op"] = *key.op;
  if (key.ranks) json["ranks"] = *key.ranks;
  if (key.bytes) json["bytes"] = *key.bytes;
  if (key.scope) json["scope"] = *key.scope;
  if (key.algorithm) json["algorithm"] = *key.algorithm;
  if (key.dtype) json["dtype"] = *key.dtype;
  if (key.model) json["model"] = *key.model;
  return json;
}

Json expectation_json(const Expectation& e) {
  return {{"key", key_json(e.key)},
          {"expected", json_number(e.expected)},
          {"tolerance", json_number(e.tolerance)},
          {"source", e.source},
          {"where", e.where}};
}

Json requirements_json(const Requirements& r) {
  return {{"devices_per_host", or_null(r.devices_per_host)},
          {"device_name", or_null(r.device_name)},
          {"device_memory_gb", json_number(r.device_memory_gb)},
          {"host_memory_gb", json_number(r.host_memory_gb)},
          {"dev_shm_gb", json_number(r.dev_shm_gb)},
          {"ecc", or_null(r.ecc)},
          {"clock_mhz", json_number(r.clock_mhz)}};
}

Json profile_json(const AcceptanceProfile& p) {
  return {{"name", p.name},
          {"device", p.device},
          {"description", p.description},
          {"source", p.source},
          {"tried_on_hardware", p.tried_on_hardware},
          {"latency_up_to_bytes", p.latency_up_to_bytes},
          {"bandwidth_from_bytes", p.bandwidth_from_bytes},
          {"cohort_tolerance", json_number(p.cohort_tolerance)},
          {"flaky_allowed", p.flaky_allowed},
          {"requires", requirements_json(p.requirements)},
          {"expectations", list(p.expectations, expectation_json)}};
}

Json gate_json(const Figure& figure) {
  if (!figure.gate) return nullptr;
  Json json = expectation_json(*figure.gate);
  json["limit"] = json_number(limit_of(*figure.gate));
  json["passed"] = figure.passed;
  return json;
}

Json figure_json(const Figure& figure) {
  const acceptance_report::FigureSummary summary = summary_of(figure);
  return {{"key", key_json(figure.key)},
          {"unit", figure.unit},
          {"more_is_better", acceptance_report::more_is_better(figure)},
          {"ranks", figure.ranks},
          {"alone", figure.alone},
          {"median", json_number(summary.median)},
          {"worst", json_number(summary.worst)},
          {"samples", list(figure.samples, [](double sample) { return json_number(sample); })},
          {"gate", gate_json(figure)}};
}

Json blame_json(const Blame& b) {
  return {
      {"kind", blame_kind_name(b.kind)}, {"ranks", b.ranks}, {"host", b.host}, {"what", b.what}};
}

Json matrix_json(const RankMatrix& matrix) {
  const auto row_json = [](const std::vector<std::optional<double>>& row) {
    return list(row, [](const std::optional<double>& value) { return json_number(value); });
  };
  return {{"title", matrix.title},
          {"unit", matrix.unit},
          {"more_is_better", matrix.more_is_better},
          {"values", list(matrix.values, row_json)}};
}

Json case_json(const CaseResult& c) {
  return {{"stage", c.stage},
          {"name", c.name},
          {"status", case_status_name(c.status)},
          {"corrupt", c.corrupt},
          {"reason", c.reason},
          {"attempts", c.attempts},
          {"seconds", json_number(c.seconds)},
          {"blamed", list(c.blamed, blame_json)},
          {"figures", list(c.figures, figure_json)},
          {"matrices", list(c.matrices, matrix_json)},
          {"notes", c.notes},
          {"not_run", c.not_run}};
}

Json coverage_json(const Coverage& coverage) {
  Json cases = Json::object();
  for (const auto& [stage, counts] : coverage.cases) {
    cases[stage] = {{"run", counts.first}, {"planned", counts.second}};
  }
  return {{"cases", cases},
          {"figures", coverage.figures},
          {"gated", coverage.gated},
          {"gates_not_met_by_a_figure", coverage.gates_not_met_by_a_figure}};
}

Json drift_json(const Drift& drift) {
  return {{"key", key_json(drift.key)},
          {"ranks", drift.ranks},
          {"before", json_number(drift.before)},
          {"now", json_number(drift.now)},
          {"change", json_number(drift.change)},
          {"beyond_spread", drift.beyond_spread}};
}

}  // namespace

std::string to_json(const Acceptance& acceptance) {
  const Json json{{"schema", Acceptance::schema},
                  {"verdict", verdict_name(acceptance.verdict)},
                  {"exit_code", static_cast<int>(acceptance.verdict)},
                  {"reasons", acceptance.reasons},
                  {"finished", acceptance.finished},
                  {"began", acceptance.began},
                  {"seconds", json_number(acceptance.seconds)},
                  {"device", acceptance.device},
                  {"world_size", acceptance.world_size},
                  {"hosts", acceptance.hosts},
                  {"devices", acceptance.devices},
                  {"labels", acceptance.labels},
                  {"coverage", coverage_json(acceptance.coverage)},
                  {"cases", list(acceptance.cases, case_json)},
                  {"drift", list(acceptance.drift, drift_json)},
                  {"profile", profile_json(acceptance.profile)},
                  {"fingerprint", report_json::fingerprint_json(acceptance.fingerprint)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string inside_json(std::string_view text) {
  const std::string quoted =
      Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace testbed
