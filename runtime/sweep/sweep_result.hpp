// What a sweep found out, point by point: plain data that the crossover, the Pareto front and the
// reports read.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/commands/simulate.hpp"
#include "runtime/measure/run_record.hpp"

namespace testbed {

// The swept values of a point; everything else is the same at all of them.
struct SweepPoint {
  std::string cluster;  // as given: a preset or a file
  int tp = 1;
  int pp = 1;
  int cp = 1;
  int dp = 1;
  int ep = 1;
  int64_t batch = 1;
  int64_t context = 0;
  int64_t prompt_tokens = 512;
  bool operator==(const SweepPoint&) const = default;

  int64_t n_devices() const { return int64_t{tp} * pp * cp * dp; }
  // Points of one series differ in their split alone.
  bool same_workload(const SweepPoint& other) const {
    return cluster == other.cluster && batch == other.batch && context == other.context &&
           prompt_tokens == other.prompt_tokens;
  }
};

// "tp 8 x pp 2 x dp 1", and where they are not 1 " x cp 2", ", ep 4".
std::string split_name(const SweepPoint& point);

// What every point is simulated again with.
inline constexpr std::array what_ifs{
    WhatIf::free_links, WhatIf::zero_latency, WhatIf::infinite_memory, WhatIf::no_waiting};

// A phase's step, simulated again on a machine without one of its costs.
struct WhatIfStep {
  WhatIf what_if = WhatIf::nothing;
  Phase phase = Phase::decode;
  double step_ms = 0.0;
  Shares shares;
};

struct SweepResult {
  SweepPoint point;
  std::optional<std::string> refused;  // why the point cannot run; then the rest is empty
  std::vector<std::string> warnings;   // from the record's labels
  std::optional<RunRecord> record;
  std::vector<WhatIfStep> what_if_steps;  // empty if they were not simulated

  const PhaseRecord* phase(Phase which) const { return record ? record->phase(which) : nullptr; }
  const WhatIfStep* what_if(Phase phase, WhatIf what_if) const;
  // Step time now / step time without that cost; null if either was not simulated.
  std::optional<double> speedup(Phase phase, WhatIf what_if) const;
  // Tokens of the phase per second and device, prompt tokens for prefill.
  std::optional<double> tokens_per_s_per_device(Phase phase) const;
};

// The all-reduce over tp that costs a phase most (exposed_us); nullptr if it has none.
const CollectiveRecord* costliest_all_reduce(const PhaseRecord& phase);

// All all-reduces over tp in a step of the phase.
double all_reduces_per_step(const PhaseRecord& phase);

// The steps of a what-if's record, for SweepResult::what_if_steps.
std::vector<WhatIfStep> steps_of(WhatIf what_if, const RunRecord& record);

}  // namespace testbed
