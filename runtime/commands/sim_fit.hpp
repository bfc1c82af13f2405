// Whether a run fits the devices of a simulated cluster, before anything runs (D28).
#pragma once

#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/commands/rank_plan.hpp"

namespace testbed {

// Every rank's memory, by rank. Throws ConfigError naming the limiting rank, and the smallest split
// that would fit.
std::vector<MemoryRecord> memory_that_fits(const RunConfig& config,
                                           const RunInputs& inputs,
                                           const Mesh& mesh,
                                           const ClusterSpec& cluster);

}  // namespace testbed
