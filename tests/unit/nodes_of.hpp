// Placements for the tests of collectives.
#pragma once

#include <numeric>
#include <vector>

#include "parallel/comm/group_placement.hpp"

namespace testbed {

// A group that fills n_nodes nodes of n_local devices.
inline GroupPlacement nodes_of(int n_nodes, int n_local) {
  std::vector<int> ranks(static_cast<size_t>(n_nodes) * static_cast<size_t>(n_local));
  std::iota(ranks.begin(), ranks.end(), 0);
  return placement_of(ranks, n_local);
}

}  // namespace testbed
