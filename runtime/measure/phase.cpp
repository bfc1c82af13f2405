// phase_of: bytes, FLOPs, shares and devices of a phase.
#include <algorithm>
#include <array>

#include "runtime/measure/breakdown.hpp"

namespace testbed {

namespace {

Shares shares_from(const std::array<double, n_parts>& f) {
  return {f[0], f[1], f[2], f[3], f[4], f[5], f[6]};
}

// Mean over devices of each part's fraction of the device's time in the phase; repeat < 0: all.
std::array<double, n_parts> fractions(const Breakdown& breakdown, Phase phase, int32_t repeat) {
  std::array<double, n_parts> sum{};
  int64_t n_devices = 0;
  for (const RankBreakdown& rank : breakdown.ranks) {
    std::array<int64_t, n_parts> part_ns{};
    int64_t total_ns = 0;
    for (const StepParts& step : rank.steps) {
      if (step.phase != phase || (repeat >= 0 && step.repeat != repeat)) continue;
      for (size_t i = 0; i < n_parts; ++i) part_ns[i] += step.part_ns[i];
      total_ns += step.window_ns;
    }
    if (total_ns == 0) continue;
    ++n_devices;
    for (size_t i = 0; i < n_parts; ++i) {
      sum[i] += static_cast<double>(part_ns[i]) / static_cast<double>(total_ns);
    }
  }
  for (double& f : sum) f = per(f, n_devices);
  return sum;
}

void add_shares(const Breakdown& breakdown, PhaseRecord& phase) {
  phase.shares = shares_from(fractions(breakdown, phase.phase, -1));
  std::array<double, n_parts> low{};
  std::array<double, n_parts> high{};
  low.fill(1.0);
  for (const int32_t repeat : breakdown.repeats) {
    const auto f = fractions(breakdown, phase.phase, repeat);
    for (size_t i = 0; i < n_parts; ++i) {
      low[i] = std::min(low[i], f[i]);
      high[i] = std::max(high[i], f[i]);
    }
  }
  phase.shares_min = shares_from(low);
  phase.shares_max = shares_from(high);
}

std::string bound_by(const Shares& s) {
  const std::pair<double, const char*> parts[] = {{s.memory(), "memory"},
                                                  {s.compute, "compute"},
                                                  {s.interconnect, "interconnect"},
                                                  {s.wait, "wait"},
                                                  {s.bubble, "bubble"},
                                                  {s.overhead, "overhead"}};
  const auto* largest =
      std::max_element(std::begin(parts), std::end(parts), [](const auto& a, const auto& b) {
        return a.first < b.first;
      });
  return largest->second;
}

// One repeat's: repeats do the same work, so the first stands for all.
OpCost cost_of_repeat(const RankTimeline& timeline, Phase phase, int32_t repeat) {
  OpCost cost;
  for (const OpEvent& event : timeline.ops) {
    if (in_phase(event.scope, phase) && event.scope.repeat == repeat) cost += event.op.cost;
  }
  return cost;
}

int64_t steps_of_repeat(const RankBreakdown& rank, Phase phase, int32_t repeat) {
  return std::count_if(rank.steps.begin(), rank.steps.end(), [&](const StepParts& step) {
    return step.phase == phase && step.repeat == repeat;
  });
}

void add_times(const RankBreakdown& rank, Phase phase, DevicePhaseRecord& device) {
  std::array<int64_t, n_parts> part_ns{};
  int64_t total_ns = 0;
  int64_t n_steps = 0;
  for (const StepParts& step : rank.steps) {
    if (step.phase != phase) continue;
    ++n_steps;
    total_ns += step.window_ns;
    for (size_t i = 0; i < n_parts; ++i) part_ns[i] += step.part_ns[i];
  }
  const auto ms = [&](Part part) {
    return per(ns_to_ms(part_ns[static_cast<size_t>(part)]), n_steps);
  };
  device.step_ms = per(ns_to_ms(total_ns), n_steps);
  device.weights_ms = ms(Part::weights);
  device.kv_ms = ms(Part::kv);
  device.compute_ms = ms(Part::compute);
  device.wire_ms = ms(Part::interconnect);
  device.wait_ms = ms(Part::wait);
  device.bubble_ms = ms(Part::bubble);
  device.overhead_ms = ms(Part::overhead);
}

// Adds the device's cost to the phase's, per step and in total.
DevicePhaseRecord device_of(const Breakdown& breakdown, int rank, PhaseRecord& phase) {
  const RankTimeline& timeline = breakdown.timeline(rank);
  const Coordinates c = timeline.coordinates;
  const int32_t repeat = breakdown.repeats.front();
  const OpCost cost = cost_of_repeat(timeline, phase.phase, repeat);
  const int64_t steps = steps_of_repeat(breakdown.rank(rank), phase.phase, repeat);
  DevicePhaseRecord device{
      .rank = rank, .tp = c.tp, .pp = c.pp, .cp = c.cp, .dp = c.dp, .host = timeline.host};
  device.steps = steps;
  device.weight_bytes = per_rounded(cost.weight_bytes, steps);
  device.kv_bytes = per_rounded(cost.kv_bytes, steps);
  device.kv_write_bytes = per_rounded(cost.kv_write_bytes, steps);
  device.flops = per_rounded(cost.flops, steps);
  device.read_bytes_total = cost.weight_bytes + cost.kv_bytes;
  add_times(breakdown.rank(rank), phase.phase, device);

  phase.steps = std::max(phase.steps, steps);
  phase.weight_bytes += device.weight_bytes;
  phase.kv_bytes += device.kv_bytes;
  phase.kv_write_bytes += device.kv_write_bytes;
  phase.flops += device.flops;
  phase.model_flops += per_rounded(cost.model_flops, steps);
  phase.weight_bytes_total += cost.weight_bytes;
  phase.kv_bytes_total += cost.kv_bytes;
  phase.flops_total += cost.flops;
  phase.model_flops_total += cost.model_flops;
  return device;
}

double mean_step_ms(const PhaseRecord& phase) {
  double sum = 0.0;
  int64_t n_devices = 0;
  for (const DevicePhaseRecord& device : phase.per_device) {
    if (device.steps == 0) continue;
    sum += device.step_ms;
    ++n_devices;
  }
  return per(sum, n_devices);
}

}  // namespace

PhaseRecord phase_of(const Breakdown& breakdown, Phase which) {
  PhaseRecord phase;
  phase.phase = which;
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    phase.per_device.push_back(device_of(breakdown, rank, phase));
  }
  phase.breakdown_step_ms = mean_step_ms(phase);
  add_shares(breakdown, phase);
  phase.bound_by = bound_by(phase.shares);
  phase.collectives = collectives_of(breakdown, which);
  phase.layers = layers_of(breakdown, which);
  if (!phase.layers.empty() && phase.layers.front().layer < 0) {
    phase.outside_layers = phase.layers.front();
    phase.layers.erase(phase.layers.begin());
  }
  phase.pipeline = pipeline_of(breakdown, which);
  phase.ring = ring_of(breakdown, which);
  phase.experts = experts_of(breakdown, which);
  return phase;
}

}  // namespace testbed
