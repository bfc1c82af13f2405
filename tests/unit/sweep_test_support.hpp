// Hand-made results of a sweep, for its tests.
#pragma once

#include <utility>
#include <vector>

#include "runtime/sweep/sweep_result.hpp"

namespace testbed::test {

// A decode step in ms.
struct Split {
  double memory_ms = 0.0;
  double interconnect_ms = 0.0;
  double other_ms = 0.0;
  double step_ms() const { return memory_ms + interconnect_ms + other_ms; }
  Shares shares() const {
    return {.weights = 0.75 * memory_ms / step_ms(),
            .kv = 0.25 * memory_ms / step_ms(),
            .compute = other_ms / step_ms(),
            .interconnect = interconnect_ms / step_ms()};
  }
};

inline PhaseRecord phase_of(Phase which, const Split& split) {
  PhaseRecord phase;
  phase.phase = which;
  phase.steps = 1;
  phase.step_ms = {{split.step_ms()}};
  phase.shares = split.shares();
  phase.bound_by = split.interconnect_ms > split.memory_ms ? "interconnect" : "memory";
  return phase;
}

// TPOT is the decode step, TTFT twice of it; one token a step, and 100 prompt tokens.
inline RunRecord record_of(const SweepPoint& point, const Split& decode) {
  RunRecord record;
  record.run.model = "toy";
  record.run.simulated = true;
  record.run.options["cluster"] = point.cluster;
  record.run.parallel.tp = point.tp;
  record.run.parallel.pp = point.pp;
  record.run.parallel.dp = point.dp;
  record.world_size = static_cast<int>(point.n_devices());
  record.phases = {phase_of(Phase::decode, decode)};
  record.timing.tpot_ms = {{decode.step_ms()}};
  record.timing.ttft_ms = {{2.0 * decode.step_ms()}};
  record.timing.decode_tokens_per_s = {{1e3 / decode.step_ms()}};
  record.timing.prefill_tokens_per_s = {{1e5 / decode.step_ms()}};
  return record;
}

inline SweepResult result_of(const SweepPoint& point, const Split& decode) {
  SweepResult result{.point = point};
  result.record = record_of(point, decode);
  return result;
}

inline SweepResult with_zero_latency(SweepResult result, const Split& then) {
  result.what_if_steps.push_back(
      {WhatIf::zero_latency, Phase::decode, then.step_ms(), then.shares()});
  return result;
}

}  // namespace testbed::test
