// The simulator's word beside a measurement: what the cluster named by --cluster would have taken.
#pragma once

#include "kernels/base/cluster_spec.hpp"
#include "runtime/config/run_config.hpp"
#include "runtime/measure/run_record.hpp"

namespace testbed {

// Fills the `predicted` of each phase. What cannot be simulated there is a label: the measurement
// stands.
void add_prediction(RunRecord& measured, const RunConfig& config, const ClusterSpec& cluster);

}  // namespace testbed
