// The machine that a run is simulated on: a cluster's part in use, changed by what is asked.
#pragma once

#include <cstdint>

#include "kernels/base/cluster_spec.hpp"
#include "parallel/mesh.hpp"
#include "runtime/commands/simulate.hpp"

namespace testbed {

// Nodes beyond those in use are left out. n_requests: of the whole job.
ClusterSpec machine_for(ClusterSpec cluster, const Mesh& mesh, int64_t n_requests, WhatIf what_if);

}  // namespace testbed
