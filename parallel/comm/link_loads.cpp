#include "parallel/comm/link_loads.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/check.hpp"
#include "kernels/sim/virtual_time.hpp"

namespace testbed {
namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Calls visit(LinkName) for each link of a flow.
template <typename Visit>
void visit_links(const ClusterSpec& cluster, int source, int target, Visit&& visit) {
  const int n = cluster.node.n_devices;
  const int node_a = source / n;
  const int node_b = target / n;
  if (node_a != node_b) {
    const FabricSpec& fabric = *cluster.fabric;
    const int nics = ceil_div(n, fabric.devices_per_nic);
    visit(LinkName{LinkKind::nic_out, node_a * nics + source % n / fabric.devices_per_nic});
    visit(LinkName{LinkKind::nic_in, node_b * nics + target % n / fabric.devices_per_nic});
    const int leaf_a = node_a / fabric.nodes_per_leaf_switch;
    const int leaf_b = node_b / fabric.nodes_per_leaf_switch;
    if (leaf_a == leaf_b) return;
    visit(LinkName{LinkKind::leaf_up, leaf_a});
    visit(LinkName{LinkKind::leaf_down, leaf_b});
    return;
  }
  visit(LinkName{LinkKind::device_up, source});
  visit(LinkName{LinkKind::device_down, target});
  const int per_socket = cluster.node.devices_per_socket;
  const int socket_a = source % n / per_socket;
  const int socket_b = target % n / per_socket;
  if (cluster.node.topology == NodeTopology::full || socket_a == socket_b) return;
  const int sockets = ceil_div(n, per_socket);
  visit(LinkName{LinkKind::socket_out, node_a * sockets + socket_a});
  visit(LinkName{LinkKind::socket_in, node_b * sockets + socket_b});
}

double bytes_per_s(const ClusterSpec& cluster, LinkKind kind) {
  switch (kind) {
    case LinkKind::device_up:
    case LinkKind::device_down:
      return cluster.node.link.bytes_per_s;
    case LinkKind::socket_out:
    case LinkKind::socket_in:
      return cluster.node.socket_bytes_per_s;
    case LinkKind::nic_out:
    case LinkKind::nic_in:
      return cluster.fabric->nic.bytes_per_s;
    case LinkKind::leaf_up:
    case LinkKind::leaf_down:
      break;
  }
  const FabricSpec& fabric = *cluster.fabric;
  const int ports = std::min(cluster.n_nodes, fabric.nodes_per_leaf_switch) *
                    ceil_div(cluster.node.n_devices, fabric.devices_per_nic);
  return fabric.nic.bytes_per_s * std::max(1.0, std::round(ports / fabric.oversubscription));
}

// Seconds for which each link is busy.
class LinkLoads {
 public:
  explicit LinkLoads(const ClusterSpec& cluster) : cluster_(cluster) {
    for (size_t kind = 0; kind < busy_s_.size(); ++kind) {
      const bool between_nodes = kind >= static_cast<size_t>(LinkKind::nic_out);
      if (between_nodes && !cluster.fabric) continue;
      bytes_per_s_[kind] = bytes_per_s(cluster, static_cast<LinkKind>(kind));
      busy_s_[kind].assign(static_cast<size_t>(cluster.n_devices()), 0.0);
    }
  }
  void add(int source, int target, const Flow& flow) {
    const int n = cluster_.node.n_devices;
    const double bytes =
        occupied_bytes(cluster_, source / n == target / n, flow.n_bytes, flow.bytes_per_s);
    visit_links(cluster_, source, target, [&](LinkName link) {
      const auto kind = static_cast<size_t>(link.kind);
      double& busy_s = busy_s_[kind][static_cast<size_t>(link.index)];
      busy_s += bytes / bytes_per_s_[kind];
      busiest_s_ = std::max(busiest_s_, busy_s);
    });
  }
  double busiest_s() const { return busiest_s_; }

 private:
  static constexpr size_t n_kinds = static_cast<size_t>(LinkKind::leaf_down) + 1;
  const ClusterSpec& cluster_;
  std::array<double, n_kinds> bytes_per_s_{};
  std::array<std::vector<double>, n_kinds> busy_s_;  // [kind][index]
  double busiest_s_ = 0.0;
};

}  // namespace

std::vector<LinkName> links_between(const ClusterSpec& cluster, int source, int target) {
  std::vector<LinkName> links;
  visit_links(cluster, source, target, [&](LinkName link) { links.push_back(link); });
  return links;
}

double seconds_alone(const CollectiveSchedule& schedule,
                     const ClusterSpec& cluster,
                     const std::vector<int>& ends) {
  double seconds = 0.0;
  for (const Round& round : schedule.rounds) {
    LinkLoads loads(cluster);
    for (const Flow& flow : round.flows) {
      CHECK(flow.source != node_switch && flow.target != node_switch);
      loads.add(
          ends[static_cast<size_t>(flow.source)], ends[static_cast<size_t>(flow.target)], flow);
    }
    seconds += round.latency_s + loads.busiest_s();
  }
  return seconds;
}

}  // namespace testbed
