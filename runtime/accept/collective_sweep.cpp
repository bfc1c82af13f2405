#include "runtime/accept/collective_sweep.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/clock.hpp"
#include "runtime/accept/collective_trial.hpp"
#include "runtime/accept/wrong_call_bytes.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/probe/collective_timing.hpp"

namespace testbed {
namespace {

constexpr int64_t most_calls_at_once = 64;
constexpr int64_t arrival_calls = 16;  // that show who comes late

// When this rank came to each call, and by which algorithm it was done.
class CallSink final : public CommSink {
 public:
  void on_comm(const CommRecord& record) override {
    algorithm = record.algorithm;
    arrived.push_back(record.post_begin_ns);
  }
  CommAlgorithm algorithm = CommAlgorithm::none;
  std::vector<int64_t> arrived;  // stamps
};

// The groups that go at once; of this rank's, if it is in one of them, its part.
class Turn {
 public:
  Turn(const AcceptContext& context,
       const std::vector<std::vector<int>>& groups,
       const SweepOptions& options)
      : context_(context),
        options_(options),
        timer_(context.device, context.control),
        values_(sweep_values(
            context.device.compute_dtype(), static_cast<int>(groups.front().size()), options)) {
    curves_.reserve(groups.size());
    for (const std::vector<int>& ranks : groups)
      curves_.push_back({.ranks = ranks, .transport = {}, .points = {}, .wrong = {}});
    const auto mine = std::find_if(groups.begin(), groups.end(), [&](const auto& ranks) {
      return std::find(ranks.begin(), ranks.end(), context.rank) != ranks.end();
    });
    const bool is_in_one = mine != groups.end();
    group_ = context.make_group(is_in_one ? *mine : std::vector<int>{context.rank}, Axis::tp);
    if (!is_in_one) {
      group_.reset();
      return;
    }
    trial_.emplace(context.device, *group_, options.op, values_, options.sizes.back());
  }

  std::vector<CollectiveCurve> run() {
    find_late_ranks();
    for (const int64_t size : options_.sizes) {
      if (!measure(size)) break;
    }
    collect();
    return std::move(curves_);
  }

 private:
  struct Sample {
    // [rank] seconds per call, seconds of it all with values and checks, and if late ranks are
    // watched for, how late in us it came to each call.
    std::vector<std::vector<double>> of_ranks;
    double slowest_s(size_t what) const {
      double most = 0.0;
      for (const std::vector<double>& of_rank : of_ranks) most = std::max(most, of_rank[what]);
      return most;
    }
  };

  int n_ranks() const { return values_.n_ranks(); }
  int64_t n_elements(int64_t size) const {
    return payload_elements(size, values_.dtype(), n_ranks());
  }

  // All ranks: those in no group only wait.
  Sample sample(int64_t size, int64_t n_calls) {
    const int64_t begin_ns = now_ns();
    CallSink sink;
    std::vector<int64_t> free;  // stamps
    std::function<void()> call;
    if (trial_) {
      trial_->prepare(n_elements(size), n_done_, n_calls);
      trial_->set_sink(watches_ ? &sink : nullptr);
      free.reserve(static_cast<size_t>(n_calls));
      call = [&] {
        if (watches_) free.push_back(context_.device.clock().now_ns());
        trial_->call();
      };
    }
    std::vector<double> mine{timer_.seconds_per_call(call, n_calls)};
    if (trial_) trial_->check();
    if (sink.algorithm != CommAlgorithm::none) algorithm_ = sink.algorithm;
    n_done_ += n_calls;
    mine.push_back(static_cast<double>(now_ns() - begin_ns) * 1e-9);
    // A group of one reports nothing.
    for (size_t i = 0; i < sink.arrived.size() && i < free.size(); ++i) {
      const Device& device = context_.device;
      mine.push_back(
          static_cast<double>(device.stamp_ns(sink.arrived[i]) - device.stamp_ns(free[i])) * 1e-3);
    }
    return {values_of_all(context_.control, mine)};
  }

  // [rank of the group][call]
  std::vector<std::vector<double>> gaps_us(const Sample& sample,
                                           const std::vector<int>& ranks) const {
    std::vector<std::vector<double>> gaps;
    gaps.reserve(ranks.size());
    for (const int rank : ranks) {
      const std::vector<double>& of_rank = sample.of_ranks[static_cast<size_t>(rank)];
      gaps.emplace_back(of_rank.begin() + 2, of_rank.end());
    }
    return gaps;
  }

  void find_late_ranks() {
    const int64_t size = options_.sizes.front();
    sample(size, 1);  // connects
    watches_ = true;
    const Sample arrivals = sample(size, arrival_calls);
    watches_ = false;
    for (CollectiveCurve& curve : curves_) {
      curve.late = latecomer(curve.ranks, gaps_us(arrivals, curve.ranks));
      watches_ = watches_ || curve.late.has_value();
    }
  }

  // What the group took for a call, less what it waited for its latest rank.
  double us_of(const Sample& sample, const std::vector<int>& ranks) const {
    double slowest_s = 0.0;
    for (const int rank : ranks)
      slowest_s = std::max(slowest_s, sample.of_ranks[static_cast<size_t>(rank)][0]);
    const std::vector<std::vector<double>> gaps = gaps_us(sample, ranks);
    const size_t n_calls = gaps.front().size();
    double waited_us = 0.0;
    for (size_t call = 0; call < n_calls; ++call) {
      const auto earlier = [call](const auto& a, const auto& b) { return a[call] < b[call]; };
      const auto [first, last] = std::minmax_element(gaps.begin(), gaps.end(), earlier);
      waited_us += ((*last)[call] - (*first)[call]) / static_cast<double>(n_calls);
    }
    constexpr double least_us = 1e-3;  // a clock's step: rates stay finite
    return std::max(least_us, slowest_s * 1e6 - waited_us);
  }

  // False if larger payloads would take too long.
  bool measure(int64_t size) {
    const int64_t n_elements_here = n_elements(size);
    const bool watched = watches_;
    watches_ = true;  // says the algorithm
    sample(size, 1);
    watches_ = watched;
    const Sample one = sample(size, 1);
    const int64_t most_calls =
        std::min(most_calls_at_once, CollectiveTrial::most_calls(options_.sizes.back(), size));
    const int64_t n_calls = count_within(options_.sample_s, one.slowest_s(0), most_calls);
    const double each_s = one.slowest_s(1) * static_cast<double>(n_calls);
    std::vector<Sample> samples;
    const bool is_too_slow = one.slowest_s(0) > options_.point_s;
    if (is_too_slow) {
      samples.push_back(one);
    } else {
      const int64_t n = count_within(options_.point_s, each_s, options_.repeats);
      samples.reserve(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) samples.push_back(sample(size, n_calls));
    }
    for (CollectiveCurve& curve : curves_) {
      CollectiveCurve::Point& point = curve.points.emplace_back();
      point.bytes = dtype_bytes(values_.dtype(), n_elements_here);
      point.us.reserve(samples.size());
      for (const Sample& each : samples) point.us.push_back(us_of(each, curve.ranks));
    }
    algorithms_.push_back(algorithm_);
    return !is_too_slow;
  }

  // What only the members know, to rank 0.
  void collect() {
    ByteWriter out;
    out.put(algorithms_);
    out.put(group_ ? std::string(group_->transport()) : std::string());
    out.put(trial_ ? trial_->n_checked() : int64_t{0});
    put_calls(out, trial_ ? trial_->wrong_calls() : std::vector<WrongCall>());
    const std::vector<Bytes> all = context_.control.gather(out.take(), 0);
    if (context_.rank != 0) return;
    for (CollectiveCurve& curve : curves_) {
      curve.wrong = {.op = options_.op, .ranks = curve.ranks, .by_rank = {}};
      for (auto rank = curve.ranks.begin(); rank != curve.ranks.end(); ++rank) {
        take(all[static_cast<size_t>(*rank)], rank == curve.ranks.begin(), curve);
      }
    }
  }

  // NCCL tells only a group's first rank by which algorithm it does what.
  static void take(const Bytes& bytes, bool is_first, CollectiveCurve& curve) {
    ByteReader in(bytes);
    std::vector<CommAlgorithm> algorithms;
    in.get(algorithms);
    for (size_t i = 0; is_first && i < curve.points.size(); ++i) {
      curve.points[i].algorithm = algorithms[i];
    }
    in.get(curve.transport);
    in.get(curve.wrong.n_calls.emplace_back());
    curve.wrong.by_rank.push_back(get_calls(in));
  }

  const AcceptContext& context_;
  const SweepOptions& options_;
  CollectiveTimer timer_;
  CollectiveValues values_;
  std::unique_ptr<Communicator> group_;
  std::optional<CollectiveTrial> trial_;
  std::vector<CollectiveCurve> curves_;
  CommAlgorithm algorithm_ = CommAlgorithm::none;  // of this rank's group
  std::vector<CommAlgorithm> algorithms_;          // [size]
  int64_t n_done_ = 0;                             // calls, those of other groups included
  bool watches_ = false;                           // for late ranks: calls are stamped
};

}  // namespace

bool CollectiveCurve::is_wrong() const {
  return std::any_of(
      wrong.by_rank.begin(), wrong.by_rank.end(), [](const auto& calls) { return !calls.empty(); });
}

std::vector<CollectiveCurve> sweep_collective(const AcceptContext& context,
                                              const GroupSet& set,
                                              const SweepOptions& options) {
  std::vector<CollectiveCurve> curves;
  SweepOptions of_turn = options;
  for (const std::vector<std::vector<int>>& groups : set.turns) {
    std::vector<CollectiveCurve> more = Turn(context, groups, of_turn).run();
    of_turn.sizes.resize(more.front().points.size());
    std::move(more.begin(), more.end(), std::back_inserter(curves));
  }
  for (CollectiveCurve& curve : curves) curve.points.resize(of_turn.sizes.size());
  return curves;
}

CollectiveValues sweep_values(DType dtype, int n_ranks, const SweepOptions& options) {
  const bool summed = options.op == CommOp::all_reduce || options.op == CommOp::reduce_scatter;
  return {dtype, n_ranks, summed, options.seed};
}

std::optional<Latecomer> latecomer(const std::vector<int>& ranks,
                                   const std::vector<std::vector<double>>& gaps_us) {
  // Far above a clock's step and a kernel's start. On a crowded machine the scheduler takes a core
  // away between two stamps in up to one call of eight (seen: 2 of 16), and for milliseconds: were
  // that the chance, it would hit 12 of 16 calls of one rank once in 10^8 cases.
  constexpr double least_us = 50.0;
  std::optional<Latecomer> latest;
  double most_us = 0.0;
  const size_t n_calls = gaps_us.front().size();
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<double> late;
    for (size_t call = 0; call < n_calls; ++call) {
      double least = gaps_us[0][call];
      for (const std::vector<double>& of_rank : gaps_us) least = std::min(least, of_rank[call]);
      const double excess = gaps_us[r][call] - least;
      if (excess >= least_us) late.push_back(excess);
    }
    const double sum_us = std::accumulate(late.begin(), late.end(), 0.0);
    const auto n_late = static_cast<int64_t>(late.size());
    const bool is_mostly_late = n_late > 0 && 4 * n_late >= 3 * static_cast<int64_t>(n_calls);
    if (!is_mostly_late || sum_us <= most_us) continue;
    most_us = sum_us;
    latest = Latecomer{.rank = ranks[r],
                       .late_us = median(late),
                       .n_late = n_late,
                       .n_calls = static_cast<int64_t>(n_calls)};
  }
  return latest;
}

}  // namespace testbed
