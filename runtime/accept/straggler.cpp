#include "runtime/accept/straggler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

// A rank's decode step in one repeat, undisturbed.
struct OwnTime {
  double reading_ns = 0.0;  // products with whole matrices
  double bytes = 0.0;       // that they read
  double work_ns = 0.0;     // stretches between collectives
  double gap_ns = 0.0;      // of these, outside ops
  int n_stretches = 0;

  double ns_per_byte() const { return bytes == 0.0 ? 0.0 : reading_ns / bytes; }
};

double lower_quartile(const std::vector<double>& samples) { return percentile(samples, 25.0); }

// Samples by the place in a step, over the steps of a repeat.
template <typename Sample>
using ByPlace = std::map<int, std::vector<Sample>>;

bool decodes(const Scope& scope, int32_t repeat) {
  return scope.repeat == repeat && scope.step >= 0 && scope.phase == Phase::decode;
}

// Every peer's matrices are as large, in every step. Not so what its experts and its embedding
// read: that is up to its own tokens, and per byte the less of them the slower.
bool reads_whole_matrix(const OpRecord& op) {
  return op.kind == OpKind::linear && op.cost.weight_bytes > 0;
}

void add_reading(const RankTimeline& timeline, int32_t repeat, OwnTime& own) {
  ByPlace<double> ns;
  ByPlace<double> bytes;
  std::map<int32_t, int> n_in_step;
  for (const OpEvent& event : timeline.ops) {
    if (!decodes(event.scope, repeat) || !reads_whole_matrix(event.op)) continue;
    const int place = n_in_step[event.scope.step]++;
    ns[place].push_back(static_cast<double>(event.op.end_ns - event.op.begin_ns));
    bytes[place].push_back(static_cast<double>(event.op.cost.weight_bytes));
  }
  for (const auto& [place, samples] : ns) {
    own.reading_ns += lower_quartile(samples);
    own.bytes += median(bytes[place]);
  }
}

bool is_message(CommOp op) { return op == CommOp::send || op == CommOp::recv; }

// What ops took of a stretch; they are in order of time, as the stretches that are asked for.
class OpsWithin {
 public:
  explicit OpsWithin(const std::vector<OpEvent>& ops) : ops_(ops) {}
  int64_t operator()(int64_t begin_ns, int64_t end_ns) {
    int64_t sum_ns = 0;
    while (next_ < ops_.size() && ops_[next_].op.end_ns <= begin_ns) ++next_;
    for (size_t i = next_; i < ops_.size() && ops_[i].op.begin_ns < end_ns; ++i) {
      sum_ns += std::min(ops_[i].op.end_ns, end_ns) - std::max(ops_[i].op.begin_ns, begin_ns);
    }
    return sum_ns;
  }

 private:
  const std::vector<OpEvent>& ops_;
  size_t next_ = 0;
};

// Stretches of a layer's work: from the end of one collective to the arrival at the next. What lies
// between layers and the next step, sampling and planning, is not every rank's work alike.
void add_stretches(const RankTimeline& timeline, int32_t repeat, OwnTime& own) {
  ByPlace<double> work;
  ByPlace<double> gap;
  OpsWithin ops_within(timeline.ops);
  std::map<int32_t, int> n_in_step;
  const CommEvent* previous = nullptr;
  for (const CommEvent& event : timeline.comms) {
    if (!decodes(event.scope, repeat) || is_message(event.comm.op)) {
      previous = nullptr;
      continue;
    }
    if (previous != nullptr && previous->scope.step == event.scope.step && event.scope.layer >= 0) {
      const int64_t begin_ns = previous->comm.wait_end_ns;
      const int64_t end_ns = event.comm.post_begin_ns;
      const int place = n_in_step[event.scope.step]++;
      work[place].push_back(static_cast<double>(end_ns - begin_ns));
      gap[place].push_back(static_cast<double>(end_ns - begin_ns - ops_within(begin_ns, end_ns)));
    }
    previous = &event;
  }
  for (const auto& [place, samples] : work) {
    own.work_ns += lower_quartile(samples);
    own.gap_ns += lower_quartile(gap[place]);
    ++own.n_stretches;
  }
}

// One rank's repeats, condensed.
struct OwnRepeats {
  double best_ns_per_byte = 0.0;
  double worst_ns_per_byte = 0.0;
  double best_gap_ns = 0.0;
  double worst_gap_ns = 0.0;
  double work_ns = 0.0;  // median
  int n_stretches = 0;
};

OwnRepeats own_repeats(const RankTimeline& timeline) {
  std::vector<double> ns_per_byte;
  std::vector<double> gap_ns;
  std::vector<double> work_ns;
  OwnRepeats own;
  int32_t n_repeats = 0;
  for (const StepEvent& step : timeline.steps) n_repeats = std::max(n_repeats, step.repeat + 1);
  for (int32_t repeat = 0; repeat < n_repeats; ++repeat) {
    OwnTime time;
    add_reading(timeline, repeat, time);
    add_stretches(timeline, repeat, time);
    ns_per_byte.push_back(time.ns_per_byte());
    gap_ns.push_back(time.gap_ns);
    work_ns.push_back(time.work_ns);
    own.n_stretches = time.n_stretches;
  }
  if (n_repeats == 0) return own;
  std::tie(own.best_ns_per_byte, own.worst_ns_per_byte) =
      std::pair(percentile(ns_per_byte, 0.0), percentile(ns_per_byte, 100.0));
  std::tie(own.best_gap_ns, own.worst_gap_ns) =
      std::pair(percentile(gap_ns, 0.0), percentile(gap_ns, 100.0));
  own.work_ns = median(work_ns);
  return own;
}

using Peers = std::vector<const OwnRepeats*>;

double median_of(const Peers& peers, double OwnRepeats::*figure) {
  std::vector<double> values;
  values.reserve(peers.size());
  for (const OwnRepeats* peer : peers) values.push_back(peer->*figure);
  return median(values);
}

std::optional<Blame> blamed(const RankTimeline& timeline,
                            const OwnRepeats& own,
                            const Peers& peers,
                            double tolerance) {
  const double peers_read = median_of(peers, &OwnRepeats::worst_ns_per_byte);
  if (peers_read > 0.0 && own.best_ns_per_byte > (1.0 + tolerance) * peers_read) {
    return Blame{.kind = Blame::Kind::device,
                 .ranks = {timeline.rank},
                 .host = timeline.host,
                 .what = fmt::format(
                     "reads weights at {:.3g} GB/s at best, {:.2g} times as long as its peers: "
                     "theirs at worst {:.3g}",
                     1.0 / own.best_ns_per_byte,
                     own.best_ns_per_byte / peers_read,
                     1.0 / peers_read)};
  }
  const double late_ns = own.best_gap_ns - median_of(peers, &OwnRepeats::worst_gap_ns);
  const double peers_work_ns = median_of(peers, &OwnRepeats::work_ns);
  if (own.n_stretches > 0 && late_ns > tolerance * peers_work_ns) {
    return Blame{.kind = Blame::Kind::rank,
                 .ranks = {timeline.rank},
                 .host = timeline.host,
                 .what = fmt::format("comes {:.0f} us later than its peers to each collective, its "
                                     "ops no slower; theirs need {:.0f} us from one to the next",
                                     late_ns * 1e-3 / own.n_stretches,
                                     peers_work_ns * 1e-3 / own.n_stretches)};
  }
  return std::nullopt;
}

}  // namespace

std::vector<Blame> stragglers(std::span<const RankTimeline> timelines, double tolerance) {
  std::vector<OwnRepeats> own;
  own.reserve(timelines.size());
  for (const RankTimeline& timeline : timelines) own.push_back(own_repeats(timeline));
  std::vector<Blame> all;
  for (size_t r = 0; r < timelines.size(); ++r) {
    Peers peers;
    for (size_t other = 0; other < timelines.size(); ++other) {
      if (other != r && timelines[other].coordinates.pp == timelines[r].coordinates.pp) {
        peers.push_back(&own[other]);
      }
    }
    if (peers.empty()) continue;
    if (std::optional<Blame> blame = blamed(timelines[r], own[r], peers, tolerance)) {
      all.push_back(std::move(*blame));
    }
  }
  return all;
}

}  // namespace testbed
