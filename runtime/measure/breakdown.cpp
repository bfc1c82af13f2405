#include "runtime/measure/breakdown.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/base/errors.hpp"

namespace testbed {

namespace {

Roof roof_of(const RankPeaks& peaks, int rank) {
  if (peaks.read_bytes_per_s.empty() || !(median(peaks.read_bytes_per_s) > 0.0) ||
      !(peaks.peak_flops > 0.0)) {
    throw Error(ExitCode::internal_error,
                fmt::format("no measured peaks for rank {}: its time cannot be attributed", rank));
  }
  return {median(peaks.read_bytes_per_s), peaks.peak_flops};
}

RankBreakdown break_down(const RankTimeline& timeline,
                         std::span<const CommTiming> timings,
                         const Roof& roof,
                         bool pipelined) {
  RankBreakdown result;
  result.pieces = attribute(timeline, timings, roof, pipelined);
  result.steps = step_parts(timeline, result.pieces);
  for (const StepParts& step : result.steps) ++result.n_steps[static_cast<size_t>(step.phase)];
  result.op_memory_ns.resize(timeline.ops.size());
  result.comm_wire_ns.resize(timeline.comms.size());
  result.comm_blocked_ns.resize(timeline.comms.size());
  for (const TimePiece& piece : result.pieces) {
    const int64_t ns = piece.end_ns - piece.begin_ns;
    if (piece.op >= 0 && (piece.part == Part::weights || piece.part == Part::kv)) {
      result.op_memory_ns[static_cast<size_t>(piece.op)] += ns;
    }
    if (piece.comm < 0) continue;
    const auto comm = static_cast<size_t>(piece.comm);
    if (piece.part == Part::interconnect) result.comm_wire_ns[comm] += ns;
    if (piece.part == Part::wait || piece.part == Part::bubble) result.comm_blocked_ns[comm] += ns;
  }
  return result;
}

void check_input(const AnalysisInput& input) {
  const auto world = static_cast<size_t>(input.mesh.world_size());
  bool by_rank = input.timelines.size() == world && input.peaks.size() == world;
  for (size_t r = 0; by_rank && r < world; ++r) {
    by_rank = input.timelines[r].rank == static_cast<int32_t>(r);
  }
  if (!by_rank) {
    throw Error(
        ExitCode::internal_error,
        fmt::format("analysis of {} ranks was given {} timelines and {} peaks, or not by rank",
                    world,
                    input.timelines.size(),
                    input.peaks.size()));
  }
}

}  // namespace

Breakdown::Breakdown(const AnalysisInput& given) : input(given) {
  check_input(input);
  comms = match_comms(input.timelines, input.mesh);
  std::set<int32_t> seen;
  for (size_t r = 0; r < input.timelines.size(); ++r) {
    const RankTimeline& timeline = input.timelines[r];
    ranks.push_back(break_down(timeline,
                               comms.timings[r],
                               roof_of(input.peaks[r], static_cast<int>(r)),
                               input.mesh.pp > 1));
    for (const StepEvent& step : timeline.steps) seen.insert(step.repeat);
  }
  repeats.assign(seen.begin(), seen.end());
}

}  // namespace testbed
