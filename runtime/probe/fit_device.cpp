#include "runtime/probe/fit_device.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.hpp"
#include "kernels/sim/op_time.hpp"
#include "runtime/probe/pattern_search.hpp"

namespace testbed {
namespace {

constexpr double least_efficiency = 1e-4;
constexpr double least_start_s = 1e-9;
constexpr double most_start_s = 1e-4;

// What a layer of a llama-like model calls (runtime/model/transformer_block.cpp): q, k, v, output,
// gate and up, down; two ropes, a cache write, an activation, two norms.
constexpr double linears_per_layer = 6;
constexpr double elementwise_per_layer = 6;

double op_time(const DeviceSpec& device, const MeasuredOp& op, MathType math) {
  return op_seconds(device, op.kind, op.cost, op.shape, math);
}

double n_bytes(const OpCost& cost) {
  return static_cast<double>(cost.weight_bytes + cost.kv_bytes + cost.kv_write_bytes +
                             cost.activation_bytes);
}

using Loss = double (*)(double log_ratio);
double squared(double log_ratio) { return log_ratio * log_ratio; }
// Cauchy's: points that the model cannot reach, as those near the ridge where a kernel is bound by
// both, do not pull the others from their places.
double robust(double log_ratio) {
  constexpr double scale = 0.05;
  return std::log1p(squared(log_ratio / scale));
}

// Efficiencies and start of one kind of op, from the ratios of model and measurement: factors
// count, not microseconds, so that decode's small ops weigh as much as prefill's large ones.
void fit_op(DeviceSpec& device,
            OpTiming DeviceTiming::*kind,
            const std::vector<MeasuredOp>& ops,
            MathType math) {
  if (ops.empty()) return;
  const auto with = [&device, kind](const std::vector<double>& x) -> const DeviceSpec& {
    device.timing.*kind = {.compute_efficiency = x[0], .memory_efficiency = x[1], .start_s = x[2]};
    return device;
  };
  std::vector<double> x{0.7, 0.7, 1e-6};
  for (const Loss loss : {squared, robust}) {
    const auto error = [&](const std::vector<double>& trial) {
      double sum = 0.0;
      for (const MeasuredOp& op : ops)
        sum += loss(std::log(op_time(with(trial), op, math) / op.seconds));
      return sum;
    };
    x = least_value(error,
                    {{.start = x[0], .least = least_efficiency, .most = 1.0},
                     {.start = x[1], .least = least_efficiency, .most = 1.0},
                     {.start = x[2], .least = least_start_s, .most = most_start_s}});
  }
  with(x);
}

// The small ops are of many kinds with rates of their own, and one figure stands for all: their
// sum over a layer's ops is what must be right. Start from the smallest, rate from the largest.
OpTiming fit_elementwise(const DeviceSpec& device, const std::vector<MeasuredOp>& ops) {
  if (ops.empty()) return {};
  const auto [least, most] =
      std::minmax_element(ops.begin(), ops.end(), [](const MeasuredOp& a, const MeasuredOp& b) {
        return std::get<ElementwisePoint>(a.point).rows < std::get<ElementwisePoint>(b.point).rows;
      });
  const int64_t few = std::get<ElementwisePoint>(least->point).rows;
  const int64_t many = std::get<ElementwisePoint>(most->point).rows;
  struct Sum {
    double bytes = 0.0, seconds = 0.0, n = 0.0;
  } small, large;
  for (const MeasuredOp& op : ops) {
    const int64_t rows = std::get<ElementwisePoint>(op.point).rows;
    if (rows != few && rows != many) continue;
    Sum& sum = rows == few ? small : large;
    sum.bytes += n_bytes(op.cost);
    sum.seconds += op.seconds;
    sum.n += 1;
  }
  // seconds = n start + bytes / rate, twice.
  const double rate = (large.bytes - small.bytes) / (large.seconds - small.seconds);
  OpTiming timing;
  if (std::isfinite(rate) && rate > 0.0)
    timing.memory_efficiency = std::clamp(rate / device.memory_bytes_per_s, least_efficiency, 1.0);
  const double reading_s = small.bytes / (timing.memory_efficiency * device.memory_bytes_per_s);
  timing.start_s = std::max(0.0, (small.seconds - reading_s) / small.n);
  return timing;
}

}  // namespace

DeviceTiming fit_device_timing(DeviceSpec device, std::span<const MeasuredOp> ops, MathType math) {
  device.timing = {};
  std::vector<MeasuredOp> linear;
  std::vector<MeasuredOp> decode;
  std::vector<MeasuredOp> prefill;
  std::vector<MeasuredOp> rest;
  for (const MeasuredOp& op : ops) {
    if (op.kind == OpKind::linear) {
      linear.push_back(op);
    } else if (op.kind == OpKind::attention) {
      (op.shape.n_query_rows == op.shape.n_sequences ? decode : prefill).push_back(op);
    } else {
      rest.push_back(op);
    }
  }
  fit_op(device, &DeviceTiming::linear, linear, math);
  fit_op(device, &DeviceTiming::attention_decode, decode, math);
  fit_op(device, &DeviceTiming::attention_prefill, prefill, math);  // reads KV at decode's rate
  DeviceTiming& timing = device.timing;
  timing.elementwise = fit_elementwise(device, rest);
  timing.layer_overhead_s = linears_per_layer * timing.linear.start_s +
                            timing.attention_decode.start_s +
                            elementwise_per_layer * timing.elementwise.start_s;
  return timing;
}

double mean_error(const DeviceSpec& device,
                  std::span<const MeasuredOp> ops,
                  OpKind kind,
                  MathType math) {
  double sum = 0.0;
  double n = 0.0;
  for (const MeasuredOp& op : ops) {
    if (op.kind != kind) continue;
    sum += std::abs(op_time(device, op, math) / op.seconds - 1.0);
    n += 1.0;
  }
  return n > 0.0 ? sum / n : 0.0;
}

}  // namespace testbed
