// The crossover: from which tensor parallel degree the interconnect costs more than the memory, and
// why.
//
// A series is the points that differ in tp alone. In a phase of a point, memory time is the step's
// weights + KV time and interconnect time its exposed wire time, means over devices (the shares of
// docs/metrics.md); waiting and bubbles are neither. The crossover is the smallest swept tp whose
// interconnect time exceeds its memory time. Its cause is told by simulating that point again
// with zero latency:
// - latency: interconnect time then no longer exceeds memory time, so the crossing is there only
//   because of what each step of the collectives costs whatever its size;
// - bandwidth: it still does, so the bytes alone take longer than memory does.
// In a prefill the memory's time is hidden under arithmetic and nearly nothing, so links overtake
// it early; from which degree they cost more than memory and compute together is told as well.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "runtime/sweep/sweep_result.hpp"

namespace testbed {

enum class CrossoverCause : uint8_t { latency, bandwidth };
constexpr std::string_view cause_name(CrossoverCause cause) {
  constexpr std::string_view names[] = {"latency", "bandwidth"};
  return names[static_cast<int>(cause)];
}

struct WallTimes {
  double memory_ms = 0.0;
  double compute_ms = 0.0;
  double interconnect_ms = 0.0;
  bool crossed() const { return interconnect_ms > memory_ms; }
};

struct Crossover {
  SweepPoint series;  // its tp is the smallest that ran
  Phase phase = Phase::decode;
  int highest_tp = 1;                   // of the series, that ran
  std::optional<int> tp;                // null: not up to highest_tp
  std::optional<CrossoverCause> cause;  // null too if zero latency was not simulated
  bool from_there_on = true;            // all higher degrees of the series have crossed, too
  bool may_be_lower = false;            // it is the smallest degree that ran
  std::optional<int> tp_over_work;      // the smallest with links above memory + compute
  // At tp, as it is and with zero latency.
  WallTimes now;
  std::optional<WallTimes> without_latency;
};

// One for every series and phase that ran, in the order of the results.
std::vector<Crossover> find_crossovers(const std::vector<SweepResult>& results);

}  // namespace testbed
