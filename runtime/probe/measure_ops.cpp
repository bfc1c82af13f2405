#include "runtime/probe/measure_ops.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/byte_stream.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/probe/timing.hpp"

namespace testbed {
namespace {

constexpr int n_rounds = 7;
// One timing: enough calls that reading the clock does not show.
constexpr double timing_s = 1e-3;
constexpr int64_t most_calls = 256;
// Long ops average over disturbances by themselves.
constexpr double long_op_s = 0.05;
constexpr int long_op_rounds = 3;

// One op on a device, and how often it has been called. A device that replays what it captured gets
// the same calls every time, from the first memory on; others go on to further memory.
class TimedOp {
 public:
  TimedOp(Device& device, const ProbeOp& op, uint64_t index)
      : device_(device),
        op_(op),
        section_key_((uint64_t{1} << 63) | static_cast<uint64_t>(op.kind) << 32 | index) {}

  double seconds_per_call(int64_t n_calls) {
    const int64_t first = device_.captures() ? 0 : n_called_;
    n_called_ += n_calls;
    const double seconds = device_seconds(device_, section_key_, [&] {
      for (int64_t i = 0; i < n_calls; ++i) op_.run(first + i);
    });
    return seconds / static_cast<double>(n_calls);
  }

 private:
  Device& device_;
  const ProbeOp& op_;
  uint64_t section_key_;  // apart from those of steps
  int64_t n_called_ = 0;
};

int64_t calls_for(double seconds) {
  return std::clamp(static_cast<int64_t>(std::ceil(timing_s / seconds)), int64_t{1}, most_calls);
}

struct Samples {
  TimedOp op;
  int64_t n_calls = 1;
  int n_rounds = testbed::n_rounds;
  std::vector<double> seconds;
};

}  // namespace

std::vector<MeasuredOp> measure_ops(Device& device, const std::vector<ProbeOp>& ops) {
  std::vector<Samples> samples;
  samples.reserve(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    Samples& s = samples.emplace_back(Samples{.op = TimedOp(device, ops[i], i), .seconds = {}});
    const double first = s.op.seconds_per_call(1);  // also the warm-up
    s.n_calls = calls_for(first);
    if (first > long_op_s) s.n_rounds = long_op_rounds;
  }
  for (int round = 0; round < n_rounds; ++round) {
    for (Samples& s : samples) {
      if (round < s.n_rounds) s.seconds.push_back(s.op.seconds_per_call(s.n_calls));
    }
  }
  std::vector<MeasuredOp> measured;
  measured.reserve(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const ProbeOp& op = ops[i];
    measured.push_back({.kind = op.kind,
                        .shape = op.shape,
                        .cost = op.cost,
                        .point = op.point,
                        .seconds = median(samples[i].seconds)});
  }
  return measured;
}

ReadRates read_rates(ControlChannel& control, const std::function<double()>& read) {
  read();  // warm-up
  std::vector<double> alone;
  std::vector<double> together;
  for (int round = 0; round < n_rounds; ++round) {
    control.barrier();
    alone.push_back(control.rank() == 0 ? read() : 0.0);
    control.barrier();
    together.push_back(read());
  }
  ByteWriter mine;
  mine.put(alone);
  mine.put(together);
  std::vector<double> sums(static_cast<size_t>(n_rounds), 0.0);
  for (const Bytes& bytes : control.all_gather(mine.take())) {
    ByteReader in(bytes);
    std::vector<double> of_rank;
    in.get(of_rank);
    if (of_rank.front() > 0.0) alone = of_rank;
    in.get(of_rank);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
  }
  return {.alone = median(alone), .together = median(sums)};
}

std::function<double()> reading_rate(Device& device, const ProbeOp& op) {
  constexpr uint64_t no_op_of_a_list = 0xffffffff;
  const auto shared = std::make_shared<const ProbeOp>(op);
  return [shared, timed = TimedOp(device, *shared, no_op_of_a_list)]() mutable {
    constexpr int64_t n_calls = 8;
    const OpCost& cost = shared->cost;
    const auto n_bytes = static_cast<double>(cost.weight_bytes + cost.activation_bytes);
    return n_bytes / timed.seconds_per_call(n_calls);
  };
}

}  // namespace testbed
