#include "runtime/probe/probe_cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/probe/fit_device.hpp"
#include "runtime/probe/fit_link.hpp"

namespace testbed {
namespace {

double fastest_reads(const ProbedMachine& machine) {
  double most = machine.record.memory_read_bytes_per_s;
  for (const MeasuredOp& op : machine.ops) {
    if (op.kind != OpKind::linear) continue;
    most = std::max(most, static_cast<double>(op.cost.weight_bytes) / op.seconds);
  }
  return most;
}

// A GPU of no known architecture: its peaks are what was measured, and its chip cannot vouch for
// them.
void state_measured_peaks(const ProbedMachine& machine, DeviceSpec& device) {
  device.chip = {};
  CHECK(machine.record.curves);
  for (const MathRate& rate : machine.record.curves->math) {
    double& peak = device.peak_flops[rate.type];
    peak = std::max(peak, rate.flops);
  }
}

DeviceSpec gpu_spec(const ProbedMachine& machine) {
  DeviceSpec device = *machine.gpu;
  device.name = machine.record.device;
  device.description = machine.record.description;
  device.memory_bytes_per_s = fastest_reads(machine);
  if (device.peak_flops.empty()) state_measured_peaks(machine, device);
  return device;
}

// Peaks are bounds: where an op outdoes the loop that was to show the peak, it is the peak.
DeviceSpec cpu_spec(const ProbedMachine& machine) {
  DeviceSpec device{.name = machine.record.device,
                    .description = machine.record.description,
                    .memory_bytes = machine.memory_bytes,
                    .memory_bytes_per_s = fastest_reads(machine),
                    .peak_flops = {{machine.math, machine.record.peak_flops}}};
  if (machine.f32_peak_flops > 0.0)
    device.peak_flops.try_emplace(MathType::f32, machine.f32_peak_flops);
  double& peak = device.peak_flops[machine.math];
  for (const MeasuredOp& op : machine.ops) {
    if (op.kind != OpKind::linear) continue;
    peak = std::max(peak, static_cast<double>(op.cost.flops) / op.seconds);
  }
  return device;
}

double link_error(const ProbedMachine& machine, const LinkTiming& timing) {
  double sum = 0.0;
  for (const CollectivePoint& point : machine.record.collectives)
    sum += std::abs(modelled_us(timing, point) / point.us - 1.0);
  return sum / static_cast<double>(machine.record.collectives.size());
}

LinkSpec link_of(const ProbedMachine& machine) {
  LinkSpec link{.name = machine.transport};
  if (machine.record.collectives.empty()) {
    // A rank by itself has no link; a bound that any link keeps.
    link.bytes_per_s = machine.record.memory_read_bytes_per_s;
    link.timing.source = "none: one rank was probed";
    return link;
  }
  link.timing = fit_link_timing(machine.record.collectives);
  link.bytes_per_s = highest_rate(link.timing);
  link.timing.source = fmt::format("testbed probe, {} ranks; mean error of the fit {:.1f} %",
                                   machine.record.n_ranks,
                                   100.0 * link_error(machine, link.timing));
  return link;
}

}  // namespace

ClusterSpec probed_cluster(const ProbedMachine& machine) {
  DeviceSpec device = machine.gpu != nullptr ? gpu_spec(machine) : cpu_spec(machine);
  device.timing = fit_device_timing(device, machine.ops, machine.math);
  const auto error = [&](OpKind kind) {
    return 100.0 * mean_error(device, machine.ops, kind, machine.math);
  };
  device.timing.source =
      fmt::format("testbed probe; mean error of the fit: linear {:.1f} %, attention {:.1f} %",
                  error(OpKind::linear),
                  error(OpKind::attention));
  std::string description =
      fmt::format("{} x {}, probed", machine.record.n_ranks, machine.record.description);
  for (const std::string& label : machine.record.labels) description += "; " + label;
  ClusterSpec cluster{.name = "probed",
                      .description = description,
                      .device = device,
                      .node = {.n_devices = machine.record.n_ranks, .link = link_of(machine)}};
  if (machine.record.n_ranks > 1 && machine.gpu == nullptr) {
    // Ranks that share a memory do not speed one another up, whatever a disturbed measurement says.
    cluster.node.shared_memory_bytes_per_s =
        device.memory_bytes_per_s *
        std::min(machine.reads_together, static_cast<double>(machine.record.n_ranks));
  }
  return cluster;
}

}  // namespace testbed
