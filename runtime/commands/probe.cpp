#include "runtime/commands/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "kernels/base/errors.hpp"
#include "runtime/commands/outputs.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/probe/measure_ops.hpp"
#include "runtime/probe/model_curves.hpp"
#include "runtime/probe/probe_cluster.hpp"
#include "runtime/probe/probe_json.hpp"
#include "runtime/probe/probe_table.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {
namespace {

void write_outputs(const ProbeConfig& config,
                   const ProbeRecord& record,
                   const ClusterSpec& cluster) {
  if (config.output.json) write_file(*config.output.json, to_json(record));
  if (config.toml) write_file(*config.toml, cluster_toml(cluster));
  if (config.output.quiet) return;
  fmt::print(terminal(config.output), "{}", to_table(record));
}

MathType math_of(DType dtype) { return dtype == DType::F32 ? MathType::f32 : MathType::bf16; }

// The ops of a layer, on rank 0 by itself: what several ranks do to one another is in the shared
// memory's rate and in the links. The others wait in the next barrier.
std::vector<MeasuredOp> measure_layer_ops(const ProbeContext& context) {
  if (context.control.rank() != 0) return {};
  std::vector<MeasuredOp> measured;
  for (const auto& make : {linear_ops, attention_ops, elementwise_ops}) {
    const std::vector<MeasuredOp> of_kind = measure_ops(context.device, make(context.device));
    measured.insert(measured.end(), of_kind.begin(), of_kind.end());
  }
  return measured;
}

// Of rank 0's GPU by itself, as the ops.
std::optional<DeviceCurves> measure_curves(const ProbeContext& context) {
  if (context.control.rank() != 0 || !context.device_curves) return std::nullopt;
  return context.device_curves();
}

double fastest(const DeviceCurves& curves, MathType type) {
  double most = 0.0;
  for (const MathRate& rate : curves.math) {
    if (rate.type == type) most = std::max(most, rate.flops);
  }
  return most;
}

void add_points(const std::vector<MeasuredOp>& ops, ProbeRecord& record) {
  constexpr double us = 1e6;
  for (const MeasuredOp& op : ops) {
    if (const auto* gemm = std::get_if<GemmPoint>(&op.point)) {
      record.gemm.push_back(*gemm);
      record.gemm.back().us = op.seconds * us;
    } else if (const auto* attention = std::get_if<AttentionPoint>(&op.point)) {
      record.attention.push_back(*attention);
      record.attention.back().us = op.seconds * us;
    } else {
      record.elementwise.push_back(std::get<ElementwisePoint>(op.point));
      record.elementwise.back().us = op.seconds * us;
    }
  }
  record.kernel_overhead_us =
      std::min_element(record.elementwise.begin(),
                       record.elementwise.end(),
                       [](const auto& a, const auto& b) { return a.us < b.us; })
          ->us;
}

}  // namespace

void run_probe(const ProbeContext& context) {
  const ProbeConfig& config = context.config;
  ControlChannel& control = context.control;
  const bool is_root = control.rank() == 0;
  std::optional<std::string> error;
  try {
    if (is_root) check_all_writable({&config.output.json, &config.toml});
  } catch (const Error& e) {
    error = e.what();
  }
  control.agree_on_mistake(error);

  const MathType math = math_of(context.device.compute_dtype());
  const int64_t memory_bytes = host_memory_bytes() / control.size();
  const ReadRates memory = read_rates(control, context.read_bandwidth_sample);
  const ReadRates weights =
      read_rates(control, reading_rate(context.device, weight_reading_op(context.device)));
  const std::vector<MeasuredOp> ops = measure_layer_ops(context);
  const std::optional<DeviceCurves> curves = measure_curves(context);
  control.barrier();
  const std::vector<CollectivePoint> collectives =
      measure_collectives(context.groups, control, context.device, config.most_bytes);
  std::vector<PairPoint> pairs;
  if (context.ways)
    pairs = measure_pairs(*context.ways, control, context.device, config.most_bytes);
  if (!is_root) return;

  ProbeRecord record{.device = std::string(context.device.kind()),
                     .simulated = false,
                     .description = context.device.description(),
                     .n_ranks = control.size(),
                     .labels = context.labels,
                     .collectives = collectives,
                     .memory_read_bytes_per_s = memory.alone,
                     .memory_read_all_bytes_per_s = memory.together,
                     .peak_flops = curves ? fastest(*curves, math) : context.peak_flops,
                     .pairs = pairs,
                     .curves = curves};
  add_points(ops, record);
  write_outputs(
      config,
      record,
      probed_cluster({.record = record,
                      .ops = ops,
                      .reads_together = weights.together / weights.alone,
                      .memory_bytes = memory_bytes,
                      .f32_peak_flops = context.f32_peak_flops,
                      .math = math,
                      .transport = context.groups.empty()
                                       ? "none"
                                       : std::string(context.groups.back().as_chosen->transport()),
                      .gpu = context.gpu}));
}

void run_model_probe(const ProbeConfig& config, const ClusterSpec& cluster) {
  check_all_writable({&config.output.json, &config.toml});
  write_outputs(config, model_curves(cluster, config.most_bytes), cluster);
}

}  // namespace testbed
