// The curves that the simulator's model gives a cluster: `testbed probe --device sim`.
#pragma once

#include "kernels/base/cluster_spec.hpp"
#include "runtime/probe/probe_record.hpp"

namespace testbed {

// Groups of 2, 4, 8 devices of one node; payloads of 512 bytes to most_bytes; matrix products at
// the shapes of benchmarks/measured/gemm.csv and attention at those of attention.csv, as
// stand-alone kernels.
ProbeRecord model_curves(const ClusterSpec& cluster, int64_t most_bytes);

}  // namespace testbed
