#include "runtime/probe/measure_ops.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/clock.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

constexpr int n_rounds = 7;
// One timing: enough calls that reading the clock does not show.
constexpr double timing_s = 1e-3;
constexpr int64_t most_calls = 256;
// Long ops average over disturbances by themselves.
constexpr double long_op_s = 0.05;
constexpr int long_op_rounds = 3;

double seconds_per_call(const ProbeOp& op, int64_t n_calls) {
  const int64_t begin_ns = now_ns();
  for (int64_t i = 0; i < n_calls; ++i) op.run();
  return static_cast<double>(now_ns() - begin_ns) * 1e-9 / static_cast<double>(n_calls);
}

int64_t calls_for(double seconds) {
  return std::clamp(static_cast<int64_t>(std::ceil(timing_s / seconds)), int64_t{1}, most_calls);
}

struct Samples {
  int64_t n_calls = 1;
  int n_rounds = testbed::n_rounds;
  std::vector<double> seconds;
};

}  // namespace

std::vector<MeasuredOp> measure_ops(const std::vector<ProbeOp>& ops) {
  std::vector<Samples> samples(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const double first = seconds_per_call(ops[i], 1);  // also the warm-up
    samples[i].n_calls = calls_for(first);
    if (first > long_op_s) samples[i].n_rounds = long_op_rounds;
  }
  for (int round = 0; round < n_rounds; ++round) {
    for (size_t i = 0; i < ops.size(); ++i) {
      if (round >= samples[i].n_rounds) continue;
      samples[i].seconds.push_back(seconds_per_call(ops[i], samples[i].n_calls));
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

std::function<double()> reading_rate(const ProbeOp& op) {
  return [op] {
    constexpr int64_t n_calls = 8;
    const auto n_bytes = static_cast<double>(op.cost.weight_bytes + op.cost.activation_bytes);
    return n_bytes / seconds_per_call(op, n_calls);
  };
}

}  // namespace testbed
