#include <fmt/format.h>

#include <cmath>

#include "runtime/report/csv_table.hpp"
#include "runtime/report/sweep_report.hpp"

namespace testbed {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();  // an empty field

void add_point(CsvTable& table, const Sweep& sweep, const SweepResult& result) {
  const SweepPoint& p = result.point;
  table.cell("model", sweep.model);
  table.cell("simulated", std::string_view("true"));
  table.cell("cluster", p.cluster);
  table.cell("tp_degree", p.tp);
  table.cell("pp_degree", p.pp);
  table.cell("cp_degree", p.cp);
  table.cell("dp_degree", p.dp);
  table.cell("ep_degree", p.ep);
  table.cell("batch", p.batch);
  table.cell("context", p.context);
  table.cell("prompt_tokens", p.prompt_tokens);
  table.cell("refused", result.refused.value_or(""));
  table.cell("warnings", fmt::format("{}", fmt::join(result.warnings, "; ")));
}

std::optional<double> median_of(const Repeated& figure) {
  return figure.empty() ? std::nullopt : std::optional(figure.median());
}

void add_timing(CsvTable& table, const SweepResult& result) {
  const TimingRecord none;
  const TimingRecord& timing = result.record ? result.record->timing : none;
  table.cell("ttft_ms", median_of(timing.ttft_ms));
  table.cell("tpot_ms", median_of(timing.tpot_ms));
}

// Each part's time is its mean over the devices: share x step.
void add_split(CsvTable& table, const PhaseRecord* phase) {
  const double step_ms = phase != nullptr ? phase->step_ms.median() : nan;
  const Shares none{nan, nan, nan, nan, nan, nan, nan};
  const Shares& s = phase != nullptr ? phase->shares : none;
  table.cell("step_ms", step_ms);
  table.cell("bound_by", phase != nullptr ? phase->bound_by : std::string());
  table.cell("weights_ms", s.weights * step_ms);
  table.cell("kv_ms", s.kv * step_ms);
  table.cell("compute_ms", s.compute * step_ms);
  table.cell("interconnect_ms", s.interconnect * step_ms);
  table.cell("wait_ms", s.wait * step_ms);
  table.cell("bubble_ms", s.bubble * step_ms);
  table.cell("overhead_ms", s.overhead * step_ms);
}

void add_all_reduce(CsvTable& table, const PhaseRecord* phase) {
  const CollectiveRecord* c = phase != nullptr ? costliest_all_reduce(*phase) : nullptr;
  table.cell("all_reduce_algorithm", c != nullptr ? c->algorithm : std::string());
  table.cell("all_reduce_us", c != nullptr ? c->wire_us.median : nan);
  table.cell("all_reduces_per_step", c != nullptr ? all_reduces_per_step(*phase) : nan);
}

void add_line(CsvTable& table,
              const Sweep& sweep,
              const SweepResult& result,
              PhaseRecord const* p) {
  add_point(table, sweep, result);
  add_timing(table, result);
  table.cell("phase", p != nullptr ? phase_name(p->phase) : std::string_view());
  table.cell("tokens_per_s_per_device",
             p != nullptr ? result.tokens_per_s_per_device(p->phase) : std::nullopt);
  add_split(table, p);
  add_all_reduce(table, p);
  for (const WhatIf what_if : what_ifs)
    table.cell(fmt::format("speedup_{}", what_if_name(what_if)),
               p != nullptr ? result.speedup(p->phase, what_if) : std::nullopt);
  table.end_line();
}

}  // namespace

std::string sweep_csv(const Sweep& sweep) {
  CsvTable table;
  for (const SweepResult& result : sweep.results) {
    if (!result.record) add_line(table, sweep, result, nullptr);
    if (!result.record) continue;
    for (const PhaseRecord& phase : result.record->phases) add_line(table, sweep, result, &phase);
  }
  return table.text();
}

}  // namespace testbed
