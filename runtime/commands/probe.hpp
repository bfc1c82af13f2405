// The probe command: a machine's own curves, measured on its ranks or computed from a cluster's
// model, as a table, JSON, and a device + cluster preset.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "kernels/device.hpp"
#include "parallel/comm/control.hpp"
#include "runtime/config/commands.hpp"
#include "runtime/probe/measure_collectives.hpp"
#include "runtime/probe/measure_pairs.hpp"
#include "runtime/probe/probe_record.hpp"

namespace testbed {

// What a rank of a real machine is given.
struct ProbeContext {
  const ProbeConfig& config;
  Device& device;
  ControlChannel& control;          // all ranks
  std::vector<ProbeGroup> groups;   // of 2, 4, 8 and all ranks, smallest first; none for one rank
  std::optional<MessageWays> ways;  // whose pairs are measured: GPUs only
  double peak_flops = 0.0;          // dense, of this rank in the compute dtype
  double f32_peak_flops = 0.0;      // the same in f32, which logits and f32 models are in
  std::function<double()> read_bandwidth_sample;  // bytes/s of this rank's read loop, now
  std::vector<std::string> labels;  // what to know before comparing with other machines
  // GPUs only: what is known of this rank's, and what its own kernels measure of it.
  const DeviceSpec* gpu = nullptr;
  std::function<DeviceCurves()> device_curves;
};

// Runs on every rank. Rank 0 prints and writes the files. Throws Error.
void run_probe(const ProbeContext& context);

// One process, no devices. Throws Error.
void run_model_probe(const ProbeConfig& config, const ClusterSpec& cluster);

}  // namespace testbed
