// The points of a sweep, checked, then simulated one after the other.
#pragma once

#include <functional>
#include <map>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/sweep/sweep.hpp"

namespace testbed {

struct SweepEngine {
  // Throws ConfigError if the run does not fit the cluster's memory, or its weights the split.
  std::function<void(const RunConfig&, const ClusterSpec&)> check;
  std::function<RunRecord(const RunConfig&, const ClusterSpec&, WhatIf)> simulate;
  // Before a simulation: how many have been done, of how many.
  std::function<void(size_t done, size_t all)> progress;
};

// clusters: by the name given. All points are checked before the first one is simulated; what fails
// is in the result with its reason. Throws ConfigError if no point can run.
Sweep run_points(const SweepConfig& config,
                 const ModelConfig& model,
                 const std::map<std::string, ClusterSpec>& clusters,
                 const SweepEngine& engine);

}  // namespace testbed
