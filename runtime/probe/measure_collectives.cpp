#include "runtime/probe/measure_collectives.hpp"

#include <algorithm>
#include <functional>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/clock.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

constexpr int64_t least_bytes = 512;
// One timing lasts long enough that the clock and the barrier do not show.
constexpr double timing_s = 2e-3;
constexpr int64_t most_calls = 64;
// All timings of one point: many of the short ones, and one call of what takes this long.
constexpr double point_s = 0.1;
constexpr int64_t most_timings = 9;
// A curve ends where one call takes longer: what follows is as much longer as the payload.
constexpr double longest_s = 0.4;

// A barrier, then the calls: this rank's seconds per call. 0 without calls.
double seconds_per_call(const std::function<void()>& call, ControlChannel& control, int64_t n) {
  control.barrier();
  if (!call) return 0.0;
  const int64_t begin_ns = now_ns();
  for (int64_t i = 0; i < n; ++i) call();
  return static_cast<double>(now_ns() - begin_ns) * 1e-9 / static_cast<double>(n);
}

// Element by element the slowest rank's, on every rank.
std::vector<double> slowest(const std::vector<double>& mine, ControlChannel& control) {
  ByteWriter out;
  out.put(mine);
  std::vector<double> most(mine.size(), 0.0);
  for (const Bytes& bytes : control.all_gather(out.take())) {
    std::vector<double> of_rank;
    ByteReader(bytes).get(of_rank);
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], of_rank[i]);
  }
  return most;
}

// How many of `each_s` fit, at least one.
int64_t count_within(double total_s, double each_s, int64_t most) {
  return std::clamp(static_cast<int64_t>(total_s / std::max(each_s, 1e-9)), int64_t{1}, most);
}

// Median over the timings of the slowest rank's time, in us.
double median_us(const std::function<void()>& call, ControlChannel& control) {
  const double first_s = slowest({seconds_per_call(call, control, 1)}, control).front();
  if (first_s > point_s) return first_s * 1e6;
  const double second_s = slowest({seconds_per_call(call, control, 1)}, control).front();
  const int64_t n_calls = count_within(timing_s, second_s, most_calls);
  const int64_t n_timings =
      count_within(point_s, second_s * static_cast<double>(n_calls), most_timings);
  std::vector<double> mine;
  mine.reserve(static_cast<size_t>(n_timings));
  for (int64_t i = 0; i < n_timings; ++i) mine.push_back(seconds_per_call(call, control, n_calls));
  return median(slowest(mine, control)) * 1e6;
}

// Notes which algorithm a communicator took.
class AlgorithmSink final : public CommSink {
 public:
  void on_comm(const CommRecord& record) override { algorithm = record.algorithm; }
  CommAlgorithm algorithm = CommAlgorithm::none;
};

// Rank 0's answer, on every rank.
CommAlgorithm chosen_algorithm(const ProbeGroup& group, ControlChannel& control, TensorView x) {
  AlgorithmSink sink;
  if (group.as_chosen != nullptr) {
    group.as_chosen->set_sink(&sink);
    group.as_chosen->all_reduce(x);
    group.as_chosen->set_sink(nullptr);
  }
  ByteWriter out;
  out.put(sink.algorithm);
  CommAlgorithm algorithm = CommAlgorithm::none;
  ByteReader(control.broadcast(out.take(), 0)).get(algorithm);
  return algorithm;
}

// There and back, between the first two ranks.
void round_trip(Communicator& group, TensorView x) {
  if (group.rank() == 0) {
    group.send(x, 1).wait();
    group.recv(x, 1).wait();
  } else if (group.rank() == 1) {
    group.recv(x, 0).wait();
    group.send(x, 0).wait();
  }
}

// One curve of a group: an operation by one algorithm.
struct Curve {
  CommOp op;
  CommAlgorithm algorithm;
  double calls = 1.0;  // operations in one call
  std::function<void(TensorView)> call;
  bool ended = false;
};

std::vector<Curve> curves_of(const ProbeGroup& group) {
  std::vector<Curve> curves;
  for (const ProbeGroup::Forced& forced : group.all_reduce) {
    curves.push_back({CommOp::all_reduce, forced.algorithm, 1.0, [&forced](TensorView x) {
                        forced.group->all_reduce(x);
                      }});
  }
  // Each rank's part is a share of the payload, in its own place.
  curves.push_back({CommOp::all_gather, CommAlgorithm::direct, 1.0, [&group](TensorView x) {
                      const int64_t share = x.n_elements() / group.size;
                      const int64_t mine = group.as_chosen->rank() * share;
                      group.as_chosen->all_gather(x.rows(mine, share), x);
                    }});
  curves.push_back({CommOp::send, CommAlgorithm::direct, 2.0, [&group](TensorView x) {
                      round_trip(*group.as_chosen, x);
                    }});
  return curves;
}

void measure_group(const ProbeGroup& group,
                   ControlChannel& control,
                   TensorView payload,
                   std::vector<CollectivePoint>& points) {
  const bool member = group.as_chosen != nullptr;
  std::vector<Curve> curves = curves_of(group);
  for (int64_t n_bytes = least_bytes; n_bytes <= payload.n_bytes(); n_bytes *= 2) {
    // Whole shares: less than n_bytes only for group sizes that are no power of two.
    const int64_t share = n_bytes / dtype_bytes(payload.dtype(), 1) / group.size;
    const TensorView x = payload.rows(0, share * group.size);
    const bool reduces = std::any_of(curves.begin(), curves.end(), [](const Curve& curve) {
      return curve.op == CommOp::all_reduce && !curve.ended;
    });
    const CommAlgorithm chosen =
        reduces ? chosen_algorithm(group, control, x) : CommAlgorithm::none;
    for (Curve& curve : curves) {
      if (curve.ended) continue;
      const auto call = [&] { curve.call(x); };
      const double us =
          median_us(member ? std::function<void()>(call) : nullptr, control) / curve.calls;
      curve.ended = us * 1e-6 * curve.calls > longest_s;
      points.push_back({.op = curve.op,
                        .n = group.size,
                        .bytes = x.n_bytes(),
                        .algorithm = curve.algorithm,
                        .us = us,
                        .best = curve.op != CommOp::all_reduce || curve.algorithm == chosen});
    }
    if (std::all_of(curves.begin(), curves.end(), [](const Curve& c) { return c.ended; })) return;
  }
}

}  // namespace

std::vector<CollectivePoint> measure_collectives(const std::vector<ProbeGroup>& groups,
                                                 ControlChannel& control,
                                                 DType dtype,
                                                 int64_t most_bytes) {
  std::vector<CollectivePoint> points;
  if (groups.empty() || most_bytes < least_bytes) return points;
  int64_t largest = least_bytes;
  while (2 * largest <= most_bytes) largest *= 2;
  const Tensor payload(dtype, {largest / dtype_bytes(dtype, 1)});
  for (const ProbeGroup& group : groups) measure_group(group, control, payload, points);
  return points;
}

}  // namespace testbed
