#include "runtime/accept/exposure.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/measure/attribution.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

std::vector<double> slopes_of_pairs(std::span<const DelayedStep> steps) {
  std::vector<double> slopes;
  slopes.reserve(steps.size() * steps.size() / 2);
  for (size_t i = 0; i < steps.size(); ++i) {
    for (size_t j = i + 1; j < steps.size(); ++j) {
      const double apart_ms = steps[j].delay_ms - steps[i].delay_ms;
      if (apart_ms == 0.0) continue;
      slopes.push_back((steps[j].step_ms - steps[i].step_ms) / apart_ms);
    }
  }
  std::sort(slopes.begin(), slopes.end());
  return slopes;
}

// Standard deviation of Kendall's S of n points of which some share their delay.
double deviation_of_s(std::span<const DelayedStep> steps) {
  const auto term = [](double n) { return n * (n - 1.0) * (2.0 * n + 5.0); };
  std::map<double, int> n_of_delay;
  for (const DelayedStep& step : steps) ++n_of_delay[step.delay_ms];
  double sum = term(static_cast<double>(steps.size()));
  for (const auto& [delay, n] : n_of_delay) sum -= term(n);
  return std::sqrt(sum / 18.0);
}

// Of sorted slopes, by rank from 1; beyond the ends the outermost.
double at_rank(const std::vector<double>& sorted, double rank) {
  const double last = static_cast<double>(sorted.size());
  return sorted[static_cast<size_t>(std::clamp(rank, 1.0, last)) - 1];
}

}  // namespace

std::optional<ExposedFraction> exposed_fraction(std::span<const DelayedStep> steps) {
  const std::vector<double> slopes = slopes_of_pairs(steps);
  if (slopes.empty()) return std::nullopt;
  constexpr double normal_quantile = 2.5758;  // of (1 + ExposedFraction::confidence) / 2
  const auto n = static_cast<double>(slopes.size());
  const double half_width = normal_quantile * deviation_of_s(steps);
  return ExposedFraction{.value = median(slopes),
                         .low = at_rank(slopes, std::floor((n - half_width) / 2.0)),
                         .high = at_rank(slopes, std::ceil((n + half_width) / 2.0) + 1.0)};
}

std::optional<double> exposed_in_breakdown(std::span<const RankTimeline> timelines,
                                           const Mesh& mesh,
                                           Phase phase) {
  const MatchedComms matched = match_comms(timelines, mesh);
  int64_t transfer_ns = 0;
  int64_t exposed_ns = 0;
  for (size_t r = 0; r < timelines.size(); ++r) {
    const auto counts = [&](const CommEvent& event) {
      return event.comm.op == CommOp::all_reduce && event.comm.axis == Axis::tp &&
             event.scope.step >= 0 && event.scope.phase == phase;
    };
    const std::vector<CommEvent>& comms = timelines[r].comms;
    for (size_t i = 0; i < comms.size(); ++i) {
      if (!counts(comms[i])) continue;
      const CommRecord& comm = comms[i].comm;
      const int64_t begin_ns = std::max(comm.post_begin_ns, matched.timings[r][i].ready_ns);
      transfer_ns += std::max<int64_t>(0, comm.wait_end_ns - begin_ns);
    }
    for (const TimePiece& piece : comm_pieces(timelines[r], matched.timings[r])) {
      if (piece.part != Part::interconnect || !counts(comms[static_cast<size_t>(piece.comm)]))
        continue;
      exposed_ns += piece.end_ns - piece.begin_ns;
    }
  }
  if (transfer_ns == 0) return std::nullopt;
  return static_cast<double>(exposed_ns) / static_cast<double>(transfer_ns);
}

}  // namespace testbed
