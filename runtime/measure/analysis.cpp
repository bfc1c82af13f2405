#include "runtime/measure/analysis.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "runtime/measure/breakdown.hpp"

namespace testbed {

namespace {

constexpr Phase phases[] = {Phase::prefill, Phase::decode, Phase::mixed};

bool occurs(const Breakdown& breakdown, Phase phase) {
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    if (breakdown.n_steps(rank, phase) > 0) return true;
  }
  return false;
}

// Step times as the first rank of each replica saw them, as in the timed pass.
bool leads_replica(const RankTimeline& timeline) {
  const Coordinates& c = timeline.coordinates;
  return c.tp == 0 && c.cp == 0 && c.pp == 0;
}

double breakdown_step_ms(const Breakdown& breakdown, Phase phase) {
  std::vector<double> repeats;
  for (const int32_t repeat : breakdown.repeats) {
    std::vector<double> steps;
    for (int rank = 0; rank < breakdown.world_size(); ++rank) {
      if (!leads_replica(breakdown.timeline(rank))) continue;
      for (const StepParts& step : breakdown.rank(rank).steps) {
        if (step.phase == phase && step.repeat == repeat) steps.push_back(ns_to_ms(step.window_ns));
      }
    }
    if (!steps.empty()) repeats.push_back(mean(steps));
  }
  return repeats.empty() ? 0.0 : median(repeats);
}

void add_instrument_overhead(const Breakdown& breakdown, RunRecord& record) {
  double with_ms = 0.0;
  double without_ms = 0.0;
  for (PhaseRecord& phase : record.phases) {
    if (phase.step_ms.empty() || phase.step_ms.median() <= 0.0) continue;
    const double instrumented_ms = breakdown_step_ms(breakdown, phase.phase);
    phase.instrument_overhead = instrumented_ms / phase.step_ms.median() - 1.0;
    with_ms += instrumented_ms * static_cast<double>(phase.steps);
    without_ms += phase.step_ms.median() * static_cast<double>(phase.steps);
  }
  if (without_ms > 0.0) record.instrument_overhead = with_ms / without_ms - 1.0;
}

void add_label(RunRecord& record, const std::string& label) {
  auto& labels = record.run.labels;
  if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
}

// Byte counts are printed of the first repeat: say so where another differs.
bool repeats_agree(const Breakdown& breakdown) {
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    std::map<int32_t, OpCost> costs;
    for (const OpEvent& event : breakdown.timeline(rank).ops) {
      if (event.scope.step >= 0) costs[event.scope.repeat] += event.op.cost;
    }
    for (const auto& [repeat, cost] : costs) {
      if (!(cost == costs.begin()->second)) return false;
    }
  }
  return true;
}

void add_labels(const Breakdown& breakdown, RunRecord& record) {
  if (!repeats_agree(breakdown)) add_label(record, "repeats differ: bytes are of the first");
  for (const std::string& label : counter_labels(record.device_counters)) add_label(record, label);
  for (const PhaseRecord& phase : record.phases) {
    if (phase.cache_resident) add_label(record, "cache-resident");
    if (phase.mbu && *phase.mbu > 1.0) {
      add_label(record,
                fmt::format("{}: MBU above 100 %, read loop slower than the model",
                            phase_name(phase.phase)));
    }
    for (const DevicePhaseRecord& device : phase.per_device) {
      if (device.steps == 0) {
        add_label(record,
                  fmt::format("{}: not every device had a step; shares are of those that had",
                              phase_name(phase.phase)));
      }
    }
    const auto [fewest, most] = std::minmax_element(
        phase.per_device.begin(), phase.per_device.end(), [](const auto& a, const auto& b) {
          return a.steps < b.steps;
        });
    if (fewest != phase.per_device.end() && fewest->steps != most->steps) {
      add_label(record,
                fmt::format("{}: replicas had {} to {} steps; rates take the longest",
                            phase_name(phase.phase),
                            fewest->steps,
                            most->steps));
    }
    for (const CollectiveRecord& collective : phase.collectives) {
      if (collective.unresolved > 0) {
        add_label(record, "clock error: waits below it are counted as wire");
      }
    }
  }
}

std::vector<ClockRecord> clocks_of(const AnalysisInput& input) {
  std::vector<ClockRecord> clocks;
  for (const RankTimeline& timeline : input.timelines) {
    clocks.push_back({timeline.rank, timeline.clock_offset_ns, timeline.clock_error_ns});
  }
  return clocks;
}

void check_timed(const PhaseRecord& phase) {
  if (!phase.step_ms.empty()) return;
  throw Error(ExitCode::internal_error,
              fmt::format("{} steps ran in the breakdown pass but not in the timed pass",
                          phase_name(phase.phase)));
}

}  // namespace

const PhaseRecord* RunRecord::phase(Phase which) const {
  for (const PhaseRecord& candidate : phases) {
    if (candidate.phase == which) return &candidate;
  }
  return nullptr;
}

RunRecord analyse(const AnalysisInput& input) {
  RunRecord record;
  record.run = input.run;
  record.world_size = input.mesh.world_size();
  const Breakdown breakdown(input);
  record.peaks = peak_records(input);
  record.clocks = clocks_of(input);
  add_timing(input, record);
  for (const Phase which : phases) {
    if (!occurs(breakdown, which)) continue;
    PhaseRecord phase = phase_of(breakdown, which);
    add_phase_timing(input, phase);
    check_timed(phase);
    add_efficiency(input, phase, record);
    record.phases.push_back(std::move(phase));
  }
  add_instrument_overhead(breakdown, record);
  add_device_counters(breakdown, record);
  add_labels(breakdown, record);
  return record;
}

}  // namespace testbed
