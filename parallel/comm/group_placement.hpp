// GroupPlacement: where the ranks of a group sit, and the order in which rings, chains and trees go
// through them. Arithmetic only.
#pragma once

#include <vector>

namespace testbed {

struct GroupPlacement {
  std::vector<int> node_of;    // [size], node of each rank
  std::vector<int> device_of;  // [size], device within its node

  int size() const { return static_cast<int>(node_of.size()); }
};

// The same names numbered from 0 by first appearance.
std::vector<int> by_first_appearance(const std::vector<int>& names);

GroupPlacement one_node(int size);  // rank r on device r
// World ranks by node, then by slot: rank r on device r mod n of node r / n.
GroupPlacement placement_of(const std::vector<int>& world_ranks, int devices_per_node);

// The group's ranks node by node, by device within a node.
std::vector<std::vector<int>> ranks_by_node(const GroupPlacement& placement);

// Channels of a ring or tree: each carries its share of the payload and passes every node's ranks
// from another start on, so that the crossings between nodes are spread over the NICs. As many as
// ranks per node; one on a single node, and if nodes hold unequal numbers of ranks.
int n_channels(const std::vector<std::vector<int>>& by_node);

// The ranks of one node in the order of a channel: those from the channel's number on come first.
std::vector<int> in_channel(const std::vector<int>& ranks_of_node, int channel);

}  // namespace testbed
