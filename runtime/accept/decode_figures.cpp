#include "runtime/accept/decode_figures.hpp"

#include <algorithm>
#include <map>

#include "runtime/measure/attribution.hpp"

namespace testbed {
namespace {

struct RepeatSum {
  int64_t n_steps = 0;
  int64_t weight_bytes = 0;
  int64_t reading_ns = 0;
  int64_t exposed_ns = 0;
};

bool decodes(const Scope& scope) { return scope.step >= 0 && scope.phase == Phase::decode; }

std::map<int32_t, RepeatSum> sums_of(const RankTimeline& timeline,
                                     std::span<const CommTiming> timings) {
  std::map<int32_t, RepeatSum> sums;
  for (const StepEvent& step : timeline.steps) {
    if (step.phase == Phase::decode) ++sums[step.repeat].n_steps;
  }
  for (const OpEvent& event : timeline.ops) {
    if (!decodes(event.scope) || event.op.cost.weight_bytes == 0) continue;
    RepeatSum& sum = sums[event.scope.repeat];
    sum.weight_bytes += event.op.cost.weight_bytes;
    sum.reading_ns += event.op.end_ns - event.op.begin_ns;
  }
  for (const TimePiece& piece : comm_pieces(timeline, timings)) {
    const Scope& scope = timeline.comms[static_cast<size_t>(piece.comm)].scope;
    if (piece.part != Part::interconnect || !decodes(scope)) continue;
    sums[scope.repeat].exposed_ns += piece.end_ns - piece.begin_ns;
  }
  return sums;
}

}  // namespace

double decode_step_ms(const GenerationTiming& timing) {
  std::vector<double> ms;
  for (const StepTiming& step : timing.steps) {
    if (step.phase != Phase::decode) continue;
    ms.push_back(static_cast<double>(step.end_ns - step.begin_ns) * 1e-6);
  }
  return ms.empty() ? 0.0 : median(ms);
}

std::vector<DecodeSplit> decode_splits(std::span<const RankTimeline> timelines, const Mesh& mesh) {
  const MatchedComms matched = match_comms(timelines, mesh);
  std::vector<DecodeSplit> splits;
  splits.reserve(timelines.size());
  for (size_t r = 0; r < timelines.size(); ++r) {
    DecodeSplit split{.rank = timelines[r].rank, .weight_read_gb_s = {}, .exposed_comm_ms = {}};
    for (const auto& [repeat, sum] : sums_of(timelines[r], matched.timings[r])) {
      if (sum.n_steps == 0) continue;
      split.exposed_comm_ms.push_back(static_cast<double>(sum.exposed_ns) * 1e-6 /
                                      static_cast<double>(sum.n_steps));
      if (sum.reading_ns == 0) continue;
      split.weight_read_gb_s.push_back(static_cast<double>(sum.weight_bytes) /
                                       static_cast<double>(sum.reading_ns));
    }
    if (!split.exposed_comm_ms.empty()) splits.push_back(std::move(split));
  }
  return splits;
}

std::vector<double> goodput_per_s(const RunRecord& record,
                                  double ttft_target_ms,
                                  double tpot_target_ms) {
  double n_met = 0.0;
  for (const RequestRecord& request : record.run.requests) {
    if (!request.ttft_ms || *request.ttft_ms > ttft_target_ms) continue;
    if (request.tpot_ms && *request.tpot_ms > tpot_target_ms) continue;
    n_met += 1.0;
  }
  std::vector<double> seconds;  // [repeat]
  for (const PhaseRecord& phase : record.phases) {
    const std::vector<double>& of_phase = phase.duration_s.repeats;
    seconds.resize(std::max(seconds.size(), of_phase.size()));
    for (size_t r = 0; r < of_phase.size(); ++r) seconds[r] += of_phase[r];
  }
  for (double& figure : seconds) figure = figure > 0.0 ? n_met / figure : 0.0;
  return seconds;
}

}  // namespace testbed
