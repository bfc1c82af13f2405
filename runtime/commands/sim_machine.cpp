#include "runtime/commands/sim_machine.hpp"

#include <algorithm>

namespace testbed {
namespace {

// A gigabyte in 0.1 us: nothing, and still more than the resolution of virtual time.
constexpr double free_bytes_per_s = 1e16;
constexpr double endless_bytes_per_s = 1e24;  // of memory; finite, so that ratios stay numbers

void remove_latency(LinkTiming& timing) {
  for (auto& [name, protocols] : timing.of) {
    for (ProtocolTiming& protocol : protocols) {
      protocol.start_s = protocol.step_s = protocol.fill_s = 0.0;
    }
  }
}

// Ranks that share one memory get an equal part of its rate each, of those that work at once: with
// fewer requests than stages, stages take turns.
void share_memory(ClusterSpec& cluster, const Mesh& mesh, int64_t n_requests) {
  const double shared = cluster.node.shared_memory_bytes_per_s;
  if (shared <= 0.0) return;
  const int requests = static_cast<int>(n_requests / mesh.dp);
  const int at_once = mesh.tp * mesh.dp * std::clamp(requests, 1, mesh.pp);
  cluster.device.memory_bytes_per_s = std::min(cluster.device.memory_bytes_per_s,
                                               shared / std::min(at_once, cluster.node.n_devices));
}

}  // namespace

ClusterSpec machine_for(ClusterSpec cluster, const Mesh& mesh, int64_t n_requests, WhatIf what_if) {
  const int n = cluster.node.n_devices;
  cluster.n_nodes = std::min(cluster.n_nodes, (mesh.world_size() + n - 1) / n);
  share_memory(cluster, mesh, n_requests);
  const auto free_link = [](LinkSpec& link) {
    link.bytes_per_s = free_bytes_per_s;
    link.timing.of.clear();
  };
  if (what_if == WhatIf::infinite_memory) {
    cluster.device.memory_bytes_per_s = endless_bytes_per_s;
  }
  if (what_if == WhatIf::free_links) {
    free_link(cluster.node.link);
    cluster.node.socket_bytes_per_s = free_bytes_per_s;
    if (cluster.fabric) free_link(cluster.fabric->nic);
  }
  if (what_if == WhatIf::zero_latency) {
    remove_latency(cluster.node.link.timing);
    if (cluster.fabric) remove_latency(cluster.fabric->nic.timing);
  }
  return cluster;
}

}  // namespace testbed
