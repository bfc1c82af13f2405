// What the curves of a collective's groups say: figures and their gates, who came late, what was
// wrong.
#pragma once

#include <vector>

#include "runtime/accept/collective_sweep.hpp"

namespace testbed {

// Into the case's result, on rank 0. curves: of all groups of the set, not empty, of equal sizes.
void report_collective(const AcceptContext& context,
                       const GroupSet& set,
                       const SweepOptions& options,
                       const std::vector<CollectiveCurve>& curves,
                       CaseResult& result);

}  // namespace testbed
