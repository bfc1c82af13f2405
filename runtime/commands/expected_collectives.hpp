// The collectives that a simulated run will do, from its plans alone. Only to know their times
// before it starts: one that is not foreseen here costs the simulator another attempt, no more.
#pragma once

#include <vector>

#include "parallel/comm/collective_times.hpp"
#include "runtime/commands/rank_plan.hpp"

namespace testbed {

std::vector<CollectiveKey> expected_collectives(const RunConfig& config,
                                                const RunInputs& inputs,
                                                const Mesh& mesh,
                                                const ClusterSpec& cluster);

}  // namespace testbed
