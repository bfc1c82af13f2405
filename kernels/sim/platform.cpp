#include "kernels/sim/platform.hpp"

#include <cmath>
#include <string>
#include <tuple>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

namespace sg = simgrid::s4u;

constexpr double host_speed = 1.0;  // hosts compute nothing: ops are slept

std::string numbered(const std::string& name, int k) { return name + std::to_string(k); }

sg::Link* make_link(sg::NetZone* zone, const std::string& name, double bytes_per_s) {
  return zone->create_link(name, bytes_per_s)->set_latency(0.0)->seal();
}

// Devices on a switch, or at one memory: each has a link of its own, the middle never blocks.
void build_full(sg::NetZone* zone, const NodeSpec& node, int first, Platform& platform) {
  for (int d = 0; d < node.n_devices; ++d) {
    const std::string name = numbered("device", first + d);
    sg::Host* host = zone->create_host(name, host_speed);
    const sg::LinkInRoute up(make_link(zone, name + "-up", node.link.bytes_per_s));
    const sg::LinkInRoute down(make_link(zone, name + "-down", node.link.bytes_per_s));
    zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {up}, false);
    zone->add_route(nullptr, host->get_netpoint(), nullptr, nullptr, {down}, false);
    platform.devices.push_back(host);
  }
  sg::Host* middle = zone->create_host(zone->get_name() + "-switch", host_speed);
  zone->add_route(middle->get_netpoint(), nullptr, nullptr, nullptr, {}, true);
  platform.switches.push_back(middle);
}

// Devices at their socket's root complex; the sockets joined by one link.
void build_tree(sg::NetZone* zone, const NodeSpec& node, int first, Platform& platform) {
  std::vector<sg::Host*> hosts;
  std::vector<sg::Link*> up;
  std::vector<sg::Link*> down;
  for (int d = 0; d < node.n_devices; ++d) {
    const std::string name = numbered("device", first + d);
    hosts.push_back(zone->create_host(name, host_speed));
    up.push_back(make_link(zone, name + "-up", node.link.bytes_per_s));
    down.push_back(make_link(zone, name + "-down", node.link.bytes_per_s));
  }
  const int n_sockets = (node.n_devices + node.devices_per_socket - 1) / node.devices_per_socket;
  std::vector<sg::Link*> out;  // [socket] towards the others
  std::vector<sg::Link*> in;
  for (int s = 0; s < n_sockets; ++s) {
    const std::string name = zone->get_name() + numbered("-socket", s);
    out.push_back(make_link(zone, name + "-out", node.socket_bytes_per_s));
    in.push_back(make_link(zone, name + "-in", node.socket_bytes_per_s));
  }
  for (int a = 0; a < node.n_devices; ++a) {
    for (int b = 0; b < node.n_devices; ++b) {
      if (a == b) continue;
      const auto i = static_cast<size_t>(a);
      const auto j = static_cast<size_t>(b);
      const auto socket_a = static_cast<size_t>(a / node.devices_per_socket);
      const auto socket_b = static_cast<size_t>(b / node.devices_per_socket);
      std::vector<sg::LinkInRoute> way{sg::LinkInRoute(up[i])};
      if (socket_a != socket_b) {
        way.emplace_back(out[socket_a]);
        way.emplace_back(in[socket_b]);
      }
      way.emplace_back(down[j]);
      zone->add_route(
          hosts[i]->get_netpoint(), hosts[j]->get_netpoint(), nullptr, nullptr, way, false);
    }
  }
  platform.devices.insert(platform.devices.end(), hosts.begin(), hosts.end());
  platform.switches.push_back(nullptr);
}

// NICs under leaf switches, leaf switches under as many spines as the oversubscription leaves.
void build_fabric(const ClusterSpec& cluster, sg::NetZone* root, Platform& platform) {
  const FabricSpec& fabric = *cluster.fabric;
  const auto n_nics_per_node = static_cast<unsigned>(
      (cluster.node.n_devices + fabric.devices_per_nic - 1) / fabric.devices_per_nic);
  const auto n_nodes = static_cast<unsigned>(cluster.n_nodes);
  const unsigned nodes_per_leaf =
      std::min(n_nodes, static_cast<unsigned>(fabric.nodes_per_leaf_switch));
  const unsigned n_leaves = (n_nodes + nodes_per_leaf - 1) / nodes_per_leaf;
  const unsigned ports = nodes_per_leaf * n_nics_per_node;
  const auto n_spines = static_cast<unsigned>(
      std::max(1.0, std::round(static_cast<double>(ports) / fabric.oversubscription)));
  const auto make_nic = [&platform](sg::NetZone* zone,
                                    const std::vector<unsigned long>& /*coordinates*/,
                                    unsigned long id) {
    sg::Host* host = zone->create_host("nic" + std::to_string(id), host_speed);
    platform.nics.push_back(host);
    return std::make_pair(host->get_netpoint(),
                          static_cast<simgrid::kernel::routing::NetPoint*>(nullptr));
  };
  const sg::ClusterCallbacks callbacks(make_nic);
  const sg::FatTreeParams shape =
      n_leaves == 1 ? sg::FatTreeParams(1, {ports}, {1}, {1})
                    : sg::FatTreeParams(2, {ports, n_leaves}, {1, n_spines}, {1, 1});
  sg::create_fatTree_zone("fabric",
                          root,
                          shape,
                          callbacks,
                          fabric.nic.bytes_per_s,
                          0.0,
                          sg::Link::SharingPolicy::SPLITDUPLEX)
      ->seal();
}

}  // namespace

Platform::Platform(const ClusterSpec& cluster)
    : n_devices(cluster.n_devices()), devices_per_node(cluster.node.n_devices) {
  sg::NetZone* root = sg::create_empty_zone("cluster");
  for (int k = 0; k < cluster.n_nodes; ++k) {
    const std::string name = numbered("node", k);
    const bool tree = cluster.node.topology == NodeTopology::tree;
    sg::NetZone* zone = tree ? sg::create_full_zone(name) : sg::create_star_zone(name);
    zone->set_parent(root);
    (tree ? build_tree : build_full)(zone, cluster.node, k * devices_per_node, *this);
    zone->seal();
  }
  if (cluster.n_nodes > 1) {
    devices_per_nic = cluster.fabric->devices_per_nic;
    build_fabric(cluster, root, *this);
  }
}

std::pair<sg::Host*, sg::Host*> Platform::ends(int source, int target) const {
  const auto node_of = [&](int end) {
    return end >= n_devices ? end - n_devices : end / devices_per_node;
  };
  const auto host_in_node = [&](int end) {
    return end >= n_devices ? switches[static_cast<size_t>(end) - static_cast<size_t>(n_devices)]
                            : devices[static_cast<size_t>(end)];
  };
  if (node_of(source) == node_of(target)) return {host_in_node(source), host_in_node(target)};
  CHECK(source < n_devices && target < n_devices);
  const int nics_per_node = (devices_per_node + devices_per_nic - 1) / devices_per_nic;
  const auto nic = [&](int device) {
    const int within = device % devices_per_node / devices_per_nic;
    return nics[static_cast<size_t>(node_of(device)) * static_cast<size_t>(nics_per_node) +
                static_cast<size_t>(within)];
  };
  return {nic(source), nic(target)};
}

}  // namespace testbed
