// Which links of the platform a flow goes over, and how long the busiest of them is busy: what a
// set of flows takes with nothing else on its links.
#pragma once

#include <tuple>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "parallel/comm/collective_schedule.hpp"

namespace testbed {

// leaf_up, leaf_down: all links of a leaf switch to the spines together.
enum class LinkKind : int {
  device_up,
  device_down,
  socket_out,
  socket_in,
  nic_out,
  nic_in,
  leaf_up,
  leaf_down
};

struct LinkName {
  LinkKind kind = LinkKind::device_up;
  int index = 0;  // counted over all nodes
  bool operator==(const LinkName&) const = default;
  bool operator<(const LinkName& o) const {
    return std::tie(kind, index) < std::tie(o.kind, o.index);
  }
};

// Source and target are devices of the cluster, counted over the nodes.
std::vector<LinkName> links_between(const ClusterSpec& cluster, int source, int target);

// Latencies and, round by round, the busiest link. No order of the flows takes less, and where all
// are equal fair sharing takes just as long; uneven ones may take longer when each starts at once.
// Rank i of the schedule sits on device ends[i].
double seconds_alone(const CollectiveSchedule& schedule,
                     const ClusterSpec& cluster,
                     const std::vector<int>& ends);

}  // namespace testbed
