// ClusterSpec: devices, the links between them, and how nodes are joined. Plain data, read from
// configs/clusters/*.toml (runtime/config/cluster_config.hpp); the simulator builds its platform
// from it. Bandwidths are bytes/s in one direction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/device_spec.hpp"
#include "kernels/base/link_timing.hpp"

namespace testbed {

// One device's attachment to its node's interconnect, or to the fabric between nodes.
struct LinkSpec {
  std::string name;          // of the preset: "nvlink4", "pcie5-x16", "ndr-ib", "100gbe", "shm"
  double bytes_per_s = 0.0;  // line rate, one direction
  LinkTiming timing;
  bool operator==(const LinkSpec&) const = default;
};

// full: each device's link ends in a switch (or memory) that never blocks. tree: the links of each
// socket's devices end in its root complex, and sockets are joined by one socket link.
enum class NodeTopology : uint8_t { full, tree };

struct NodeSpec {
  int n_devices = 8;
  NodeTopology topology = NodeTopology::full;
  LinkSpec link;
  bool in_switch_reduction = false;  // NVLS: the switch sums and multicasts
  // tree only:
  int devices_per_socket = 4;
  double socket_bytes_per_s = 0.0;
  // Devices that share one memory (CPU ranks): what they read together at most; 0: each its own.
  double shared_memory_bytes_per_s = 0.0;
};

// Between nodes: each NIC serves devices_per_nic devices of a node; nodes are leaves of a fat tree.
struct FabricSpec {
  LinkSpec nic;
  int devices_per_nic = 1;
  int nodes_per_leaf_switch = 16;
  double oversubscription = 1.0;  // leaf downlinks / leaf uplinks
};

struct ClusterSpec {
  std::string name;         // of the preset: "dgx-h100"
  std::string description;  // one line, as reported
  DeviceSpec device;
  NodeSpec node;
  int n_nodes = 1;
  std::optional<FabricSpec> fabric;  // needed for more than one node

  int n_devices() const { return n_nodes * node.n_devices; }
};

}  // namespace testbed
