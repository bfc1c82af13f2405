// Which points a sweep has, and which of them cannot run, told before anything is simulated.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/config/commands.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/sweep/sweep_result.hpp"

namespace testbed {

// Every combination of the lists: clusters outermost, then workloads, pp,
// cp, dp and ep; tp innermost.
std::vector<SweepPoint> sweep_points(const SweepConfig& config);

// --best: for every cluster and workload all legal splits of all devices of the cluster, or of a
// part of which the cluster holds a whole number. n_devices: by cluster, in the order of
// config.clusters. A replica without a request would only idle, so dp is at most the batch. cp is
// taken from config.cp. ep from config.ep, or if that is empty: experts cut over tp (1), whole ones
// over tp, and over all ranks of a stage.
std::vector<SweepPoint> all_splits(const SweepConfig& config,
                                   const ModelConfig& model,
                                   const std::vector<int>& n_devices);

// The base configuration at a point.
RunConfig config_of(const SweepConfig& config, const SweepPoint& point);

// Too many devices for the cluster, or a split that the model does not allow. What depends on
// memory and on how weights are stored is not looked at.
std::optional<std::string> why_refused(const RunConfig& config,
                                       const ModelConfig& model,
                                       const ClusterSpec& cluster);

}  // namespace testbed
