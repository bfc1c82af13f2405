// The device + cluster preset that a measured machine is: what `--toml` writes.
#pragma once

#include <span>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/probe/probe_op.hpp"
#include "runtime/probe/probe_record.hpp"

namespace testbed {

struct ProbedMachine {
  const ProbeRecord& record;
  std::span<const MeasuredOp> ops;  // of one rank by itself
  // How much more all ranks read together than one alone, as a decode step reads: 1 .. n_ranks.
  double reads_together = 1.0;
  int64_t memory_bytes = 0;     // of one rank
  double f32_peak_flops = 0.0;  // beside the record's, which is of `math`; 0: not measured
  MathType math = MathType::bf16;
  std::string transport;            // that the ranks' messages travel over: the link's name
  const DeviceSpec* gpu = nullptr;  // what is known of each rank's own GPU; none: CPU ranks
};

// One node of n_ranks devices. A GPU keeps its chip, capacity and dense peaks; its bandwidth and
// timings are the measured ones. Sources and fit errors are in the timings.
ClusterSpec probed_cluster(const ProbedMachine& machine);

}  // namespace testbed
