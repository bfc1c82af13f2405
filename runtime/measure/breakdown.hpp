// Breakdown: the attributed timelines of all ranks, and the tables of a phase made from them. The
// inside of analyse().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/measure/analysis.hpp"
#include "runtime/measure/attribution.hpp"

namespace testbed {

struct RankBreakdown {
  std::vector<TimePiece> pieces;
  std::vector<StepParts> steps;          // all repeats
  std::array<int64_t, 3> n_steps{};      // [phase]: of all repeats
  std::vector<int64_t> op_memory_ns;     // [op]: weights + KV
  std::vector<int64_t> comm_wire_ns;     // [comm]: interconnect
  std::vector<int64_t> comm_blocked_ns;  // [comm]: wait or bubble
};

struct Breakdown {
  explicit Breakdown(const AnalysisInput& input);

  const RankTimeline& timeline(int rank) const {
    return input.timelines[static_cast<size_t>(rank)];
  }
  const RankBreakdown& rank(int r) const { return ranks[static_cast<size_t>(r)]; }
  int world_size() const { return static_cast<int>(ranks.size()); }
  int64_t n_steps(int r, Phase phase) const {  // over all repeats
    return rank(r).n_steps[static_cast<size_t>(phase)];
  }

  const AnalysisInput& input;
  MatchedComms comms;
  std::vector<RankBreakdown> ranks;
  std::vector<int32_t> repeats;  // those that occur
};

// An event of a step of this phase; what lies outside steps (barriers between repeats) is in none.
inline bool in_phase(const Scope& scope, Phase phase) {
  return scope.step >= 0 && scope.phase == phase;
}
inline double ns_to_ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }
inline double ns_to_us(int64_t ns) { return static_cast<double>(ns) * 1e-3; }
inline double per(double total, int64_t count) {
  return count == 0 ? 0.0 : total / static_cast<double>(count);
}
// The integer nearest to total / count, for totals >= 0.
inline int64_t per_rounded(int64_t total, int64_t count) {
  return count == 0 ? 0 : (total + count / 2) / count;
}

std::vector<CollectiveRecord> collectives_of(const Breakdown& breakdown, Phase phase);
// Layer -1 first if it occurs, then by index.
std::vector<LayerRecord> layers_of(const Breakdown& breakdown, Phase phase);
std::optional<PipelineRecord> pipeline_of(const Breakdown& breakdown, Phase phase);
// By ring step, [cp]; empty if no ring ran in the phase.
std::vector<RingStepRecord> ring_of(const Breakdown& breakdown, Phase phase);
// Null without experts. Throws Error if a pass's tokens are not those of the run's experts.
std::optional<ExpertsRecord> experts_of(const Breakdown& breakdown, Phase phase);
// Everything of the phase but what needs the timed pass: step_ms, mfu, mbu, roofline.
PhaseRecord phase_of(const Breakdown& breakdown, Phase phase);

// Headlines of the timed pass; completes record.run.requests.
void add_timing(const AnalysisInput& input, RunRecord& record);
// step_ms of the phase, empty if no step of it was timed.
void add_phase_timing(const AnalysisInput& input, PhaseRecord& phase);
// mfu, mbu, roofline, memory_domains: bytes and FLOPs against the peaks over the timed step.
void add_efficiency(const AnalysisInput& input, PhaseRecord& phase, RunRecord& record);
std::vector<PeakRecord> peak_records(const AnalysisInput& input);
// device_counters and energy.
void add_device_counters(const Breakdown& breakdown, RunRecord& record);

}  // namespace testbed
