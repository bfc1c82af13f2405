// Lockstep: replicas that share experts take every step together, because each step's expert
// exchanges need all of them.
#pragma once

#include <optional>
#include <vector>

#include "parallel/comm/control.hpp"
#include "runtime/serving/scheduler.hpp"

namespace testbed {

// The next step of this replica; nullopt on all replicas at once, when none has anything left.
// Every scheduling rank calls it, once per step; replicas: the world ranks of all of them. The step
// has the same number, phase and number of microbatches everywhere. Its phase is prefill as long as
// anyone's is: a replica that could decode already gets steps without rows, as does one that is
// done. Microbatches that others have more of are padded with ones without rows.
std::optional<StepPlan> next_in_lockstep(ControlChannel& control,
                                         const std::vector<int>& replicas,
                                         Scheduler& scheduler);

}  // namespace testbed
