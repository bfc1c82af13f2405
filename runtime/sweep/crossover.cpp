#include "runtime/sweep/crossover.hpp"

#include <algorithm>

namespace testbed {
namespace {

using Series = std::vector<const SweepResult*>;  // not empty

bool same_series(const SweepPoint& a, const SweepPoint& b) {
  return a.same_workload(b) && a.pp == b.pp && a.cp == b.cp && a.dp == b.dp && a.ep == b.ep;
}

// The results that ran, series by series, each by rising tp.
std::vector<Series> series_of(const std::vector<SweepResult>& results) {
  std::vector<Series> all;
  for (const SweepResult& result : results) {
    if (!result.record) continue;
    const auto mine = std::find_if(all.begin(), all.end(), [&](const Series& series) {
      return same_series(series.front()->point, result.point);
    });
    (mine == all.end() ? all.emplace_back() : *mine).push_back(&result);
  }
  for (Series& series : all)
    std::sort(series.begin(), series.end(), [](const auto* a, const auto* b) {
      return a->point.tp < b->point.tp;
    });
  return all;
}

WallTimes wall_times(double step_ms, const Shares& shares) {
  return {.memory_ms = shares.memory() * step_ms,
          .compute_ms = shares.compute * step_ms,
          .interconnect_ms = shares.interconnect * step_ms};
}

WallTimes wall_times(const SweepResult& result, Phase which) {
  const PhaseRecord& phase = *result.phase(which);
  return wall_times(phase.step_ms.median(), phase.shares);
}

void explain(Crossover& crossover, const SweepResult& at) {
  crossover.tp = at.point.tp;
  crossover.now = wall_times(at, crossover.phase);
  const WhatIfStep* step = at.what_if(crossover.phase, WhatIf::zero_latency);
  if (step == nullptr) return;
  crossover.without_latency = wall_times(step->step_ms, step->shares);
  crossover.cause =
      crossover.without_latency->crossed() ? CrossoverCause::bandwidth : CrossoverCause::latency;
}

Crossover find_crossover(const Series& series, Phase phase) {
  Crossover crossover{
      .series = series.front()->point, .phase = phase, .highest_tp = series.back()->point.tp};
  for (const SweepResult* result : series) {
    const WallTimes times = wall_times(*result, phase);
    const bool crossed = times.crossed();
    if (!crossover.tp_over_work && times.interconnect_ms > times.memory_ms + times.compute_ms)
      crossover.tp_over_work = result->point.tp;
    if (crossed && !crossover.tp) explain(crossover, *result);
    if (!crossed && crossover.tp) crossover.from_there_on = false;
  }
  crossover.may_be_lower = crossover.tp == series.front()->point.tp && *crossover.tp > 1;
  return crossover;
}

}  // namespace

std::vector<Crossover> find_crossovers(const std::vector<SweepResult>& results) {
  std::vector<Crossover> crossovers;
  for (const Series& series : series_of(results)) {
    for (const Phase phase : {Phase::prefill, Phase::decode, Phase::mixed}) {
      Series with_phase;
      std::copy_if(series.begin(),
                   series.end(),
                   std::back_inserter(with_phase),
                   [&](const SweepResult* result) { return result->phase(phase) != nullptr; });
      if (!with_phase.empty()) crossovers.push_back(find_crossover(with_phase, phase));
    }
  }
  return crossovers;
}

}  // namespace testbed
