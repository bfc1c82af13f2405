#include "runtime/probe/measure_collectives.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "kernels/base/byte_stream.hpp"
#include "runtime/probe/collective_timing.hpp"

namespace testbed {
namespace {

constexpr int64_t least_bytes = 512;
// A curve ends where one call takes longer: what follows is as much longer as the payload.
constexpr double longest_s = 0.4;

// Notes which algorithm a communicator took.
class AlgorithmSink final : public CommSink {
 public:
  void on_comm(const CommRecord& record) override { algorithm = record.algorithm; }
  CommAlgorithm algorithm = CommAlgorithm::none;
};

// What a call of the group's takes: rank 0's answer, on every rank.
CommAlgorithm chosen_algorithm(const ProbeGroup& group,
                               ControlChannel& control,
                               const std::function<void()>& call) {
  AlgorithmSink sink;
  if (group.as_chosen != nullptr) {
    group.as_chosen->set_sink(&sink);
    call();
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

// One curve of a group: an operation by one algorithm, or by what the group takes.
struct Curve {
  CommOp op;
  std::optional<CommAlgorithm> algorithm;
  int64_t most_bytes = 0;  // of a payload; 0: any
  double calls = 1.0;      // operations in one call
  std::function<void(TensorView)> call;
  bool ended = false;
};

std::vector<Curve> curves_of(const ProbeGroup& group) {
  std::vector<Curve> curves;
  for (const ProbeGroup::Forced& forced : group.all_reduce) {
    curves.push_back(
        {CommOp::all_reduce, forced.algorithm, forced.most_bytes, 1.0, [&forced](TensorView x) {
           forced.group->all_reduce(x);
         }});
  }
  // Each rank's part is a share of the payload, in its own place.
  curves.push_back({CommOp::all_gather, std::nullopt, 0, 1.0, [&group](TensorView x) {
                      const int64_t share = x.n_elements() / group.size;
                      const int64_t mine = group.as_chosen->rank() * share;
                      group.as_chosen->all_gather(x.rows(mine, share), x);
                    }});
  curves.push_back({CommOp::send, CommAlgorithm::direct, 0, 2.0, [&group](TensorView x) {
                      round_trip(*group.as_chosen, x);
                    }});
  return curves;
}

// Those whose algorithm takes no such payload; all ranks alike.
void end_curves(std::vector<Curve>& curves, int64_t n_bytes) {
  for (Curve& curve : curves) {
    if (curve.most_bytes != 0 && n_bytes > curve.most_bytes) curve.ended = true;
  }
}

void measure_group(const ProbeGroup& group,
                   const CollectiveTimer& timer,
                   ControlChannel& control,
                   TensorView payload,
                   std::vector<CollectivePoint>& points) {
  const bool member = group.as_chosen != nullptr;
  std::vector<Curve> curves = curves_of(group);
  for (int64_t n_bytes = least_bytes; n_bytes <= payload.n_bytes(); n_bytes *= 2) {
    // Whole shares: less than n_bytes only for group sizes that are no power of two.
    const int64_t share = n_bytes / dtype_bytes(payload.dtype(), 1) / group.size;
    const TensorView x = payload.rows(0, share * group.size);
    end_curves(curves, x.n_bytes());
    const bool reduces = std::any_of(curves.begin(), curves.end(), [](const Curve& curve) {
      return curve.op == CommOp::all_reduce && !curve.ended;
    });
    const CommAlgorithm chosen =
        reduces ? chosen_algorithm(group, control, [&] { group.as_chosen->all_reduce(x); })
                : CommAlgorithm::none;
    for (Curve& curve : curves) {
      if (curve.ended) continue;
      const auto call = [&] { curve.call(x); };
      const CommAlgorithm algorithm =
          curve.algorithm ? *curve.algorithm : chosen_algorithm(group, control, call);
      const double us =
          timer.median_us(member ? std::function<void()>(call) : nullptr) / curve.calls;
      curve.ended = us * 1e-6 * curve.calls > longest_s;
      points.push_back({.op = curve.op,
                        .n = group.size,
                        .bytes = x.n_bytes(),
                        .algorithm = algorithm,
                        .us = us,
                        .best = curve.op != CommOp::all_reduce || algorithm == chosen,
                        .most_bytes = curve.most_bytes});
    }
    if (std::all_of(curves.begin(), curves.end(), [](const Curve& c) { return c.ended; })) return;
  }
}

}  // namespace

std::vector<CollectivePoint> measure_collectives(const std::vector<ProbeGroup>& groups,
                                                 ControlChannel& control,
                                                 Device& device,
                                                 int64_t most_bytes) {
  std::vector<CollectivePoint> points;
  if (groups.empty() || most_bytes < least_bytes) return points;
  int64_t largest = least_bytes;
  while (2 * largest <= most_bytes) largest *= 2;
  const DType dtype = device.compute_dtype();
  const Shape shape{largest / dtype_bytes(dtype, 1)};
  // Where a run's partial sums are (Executor). Every rank is in the last group, of all.
  std::optional<Tensor> shared = groups.back().as_chosen->allocate(dtype, shape);
  const Tensor payload = shared ? std::move(*shared) : device.allocate(dtype, shape);
  device.fill_synthetic(payload);
  const CollectiveTimer timer(device, control);
  for (const ProbeGroup& group : groups) measure_group(group, timer, control, payload, points);
  return points;
}

}  // namespace testbed
