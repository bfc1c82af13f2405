// Platform: a cluster as SimGrid zones. Part of the plugin.
#pragma once

#include <simgrid/s4u.hpp>
#include <vector>

#include "kernels/base/cluster_spec.hpp"

namespace testbed {

// Every device appears twice: as a host of its node's zone, and through its NIC as a host of the
// fabric's. So a flow within a node never meets the NIC, and one between nodes never NVLink. Links
// have no latency: schedules charge it (CM02 would share links by it).
struct Platform {
  explicit Platform(const ClusterSpec& cluster);

  simgrid::s4u::Host* first_host() const { return devices.front(); }
  // The hosts that a flow between two ends runs between.
  std::pair<simgrid::s4u::Host*, simgrid::s4u::Host*> ends(int source, int target) const;

  int n_devices = 0;
  int devices_per_node = 1;
  int devices_per_nic = 1;
  std::vector<simgrid::s4u::Host*> devices;   // [n_devices]
  std::vector<simgrid::s4u::Host*> switches;  // [n_nodes]
  std::vector<simgrid::s4u::Host*> nics;      // [n_nodes * NICs of a node], empty for one node
};

}  // namespace testbed
