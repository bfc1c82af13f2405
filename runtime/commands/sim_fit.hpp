// Whether a run fits the devices of a simulated cluster, before anything runs (D28).
#pragma once

#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/commands/rank_plan.hpp"

namespace testbed {

// The ranks of a simulated run: one process stands for all of them, so dp is 1 unless given.
Mesh simulated_mesh(const ParallelConfig& parallel);

// Every rank's memory, by rank. Throws ConfigError naming the limiting rank, and the smallest split
// that would fit.
std::vector<MemoryRecord> memory_that_fits(const RunConfig& config,
                                           const RunInputs& inputs,
                                           const Mesh& mesh,
                                           const ClusterSpec& cluster);

}  // namespace testbed
