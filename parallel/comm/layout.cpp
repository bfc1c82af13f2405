#include "parallel/comm/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

bool is_of_network(Layout layout) { return layout == Layout::ib || layout == Layout::socket; }

bool equal_values(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::toupper(x) == std::toupper(y);
  });
}

// The first pair of the host's devices that is (not) joined by NVLink.
std::optional<std::string> pair_that(const HostTopology& topology, bool is_joined) {
  for (size_t i = 0; i < topology.devices.size(); ++i) {
    for (size_t j = i + 1; j < topology.devices.size(); ++j) {
      const DeviceLinks& a = topology.devices[i];
      const DeviceLinks& b = topology.devices[j];
      if (nvlink_between(a, b) == is_joined) {
        return fmt::format("{} and {}", a.pci_bus_id, b.pci_bus_id);
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> why_no_peers(Layout layout, const HostTopology& topology) {
  if (topology.shares_devices) return "ranks that share a GPU reach each other by network only";
  if (topology.devices.size() < 2) return "this host has one rank only";
  if (!topology.links_known || layout == Layout::shm) return std::nullopt;
  if (layout == Layout::pcie) {
    if (const auto pair = pair_that(topology, true)) {
      return fmt::format(
          "{} are joined by NVLink, which peer-to-peer then takes: over PCIe it cannot be had here "
          "(--layout shm goes over PCIe, through host memory)",
          *pair);
    }
  } else if (const auto pair = pair_that(topology, false)) {
    return fmt::format("no NVLink joins {}", *pair);
  }
  return std::nullopt;
}

Environment links_of(Layout layout) {
  switch (layout) {
    case Layout::nvlink:
      // Of P2P only what is NVLink; the rest would go through host memory, and be seen.
      return {{"NCCL_P2P_DISABLE", "0"}, {"NCCL_P2P_LEVEL", "NVL"}};
    case Layout::nvlink_ring:
      return {{"NCCL_P2P_DISABLE", "0"},
              {"NCCL_P2P_LEVEL", "NVL"},
              {"NCCL_NVLS_ENABLE", "0"},
              {"NCCL_ALGO", "Ring"}};
    case Layout::pcie:
      return {{"NCCL_P2P_DISABLE", "0"},
              {"NCCL_P2P_LEVEL", "SYS"},
              {"NCCL_NVLS_ENABLE", "0"},
              {"NCCL_MNNVL_ENABLE", "0"}};
    case Layout::shm:
      return {{"NCCL_P2P_DISABLE", "1"},
              {"NCCL_SHM_DISABLE", "0"},
              {"NCCL_NVLS_ENABLE", "0"},
              {"NCCL_MNNVL_ENABLE", "0"}};
    case Layout::ib:
    case Layout::socket:
      return {{"NCCL_P2P_DISABLE", "1"},
              {"NCCL_SHM_DISABLE", "1"},
              {"NCCL_NVLS_ENABLE", "0"},
              {"NCCL_MNNVL_ENABLE", "0"},
              {"NCCL_NET", layout == Layout::ib ? "IB" : "Socket"},
              {"NCCL_IB_DISABLE", layout == Layout::ib ? "0" : "1"}};
    case Layout::automatic:
    case Layout::mpi:
    case Layout::tcp:
      break;
  }
  return {};
}

// What a message to a rank on this host, or on another, may go through.
bool is_of_layout(Layout layout, NcclTransport transport, bool same_host) {
  switch (layout) {
    case Layout::nvlink:
    case Layout::nvlink_ring:
      return !same_host || transport == NcclTransport::p2p || transport == NcclTransport::mnnvl;
    case Layout::pcie:
      return !same_host || transport == NcclTransport::p2p;
    case Layout::shm:
      return !same_host || transport == NcclTransport::shm;
    case Layout::ib:
      return transport == NcclTransport::ib || transport == NcclTransport::ib_gdr;
    case Layout::socket:
      return transport == NcclTransport::socket;
    default:
      return true;
  }
}

bool is_by_switch(CommAlgorithm a) {
  return a == CommAlgorithm::nvls || a == CommAlgorithm::nvls_tree;
}

std::optional<std::string> unwanted_choice(Layout layout, const LoggedCommunicator& communicator) {
  for (const NcclChoice& choice : communicator.choices) {
    const bool unwanted = layout == Layout::nvlink_ring ? choice.algorithm != CommAlgorithm::ring
                          : layout == Layout::nvlink    ? false
                                                        : is_by_switch(choice.algorithm);
    if (unwanted) {
      return fmt::format("an {} of {} bytes was done by {}",
                         comm_op_name(choice.op),
                         choice.n_bytes,
                         algorithm_name(choice.algorithm));
    }
  }
  return std::nullopt;
}

std::optional<std::string> unwanted_transport(Layout layout,
                                              const LoggedCommunicator& communicator,
                                              const GroupInfo& group) {
  for (const auto* peers : {&communicator.to, &communicator.from}) {
    for (const auto& [peer, transports] : *peers) {
      if (peer < 0 || peer >= group.size) continue;  // not of this group's log
      const bool same_host = group.node(peer) == group.node(group.rank);
      for (const NcclTransport transport : transports) {
        if (is_of_layout(layout, transport, same_host)) continue;
        return fmt::format("messages {} rank {} of the group went through {}",
                           peers == &communicator.to ? "to" : "from",
                           peer,
                           transport_name({transport}, P2pLink::unknown));
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_not_on_cpu(Layout layout) {
  switch (layout) {
    case Layout::automatic:
    case Layout::mpi:
      return std::nullopt;
    case Layout::shm:
    case Layout::tcp:
      return fmt::format("--layout {} of --device cpu is not built yet (mpi is)",
                         layout_name(layout));
    default:
      return fmt::format("--layout {} is of GPUs: --device cuda", layout_name(layout));
  }
}

bool nvlink_between(const DeviceLinks& a, const DeviceLinks& b) {
  if (a.n_switch_links > 0 && b.n_switch_links > 0) return true;
  return std::find(a.peers.begin(), a.peers.end(), b.pci_bus_id) != a.peers.end();
}

P2pLink p2p_link(const HostTopology& topology) {
  if (!topology.links_known || topology.devices.size() < 2) return P2pLink::unknown;
  if (!pair_that(topology, false)) return P2pLink::nvlink;
  return pair_that(topology, true) ? P2pLink::unknown : P2pLink::pcie;
}

std::optional<std::string> why_not(Layout layout, const HostTopology& topology) {
  std::optional<std::string> reason;
  if (layout == Layout::mpi || layout == Layout::tcp) {
    return fmt::format("--layout {} is of --device cpu", layout_name(layout));
  }
  if (layout == Layout::ib && topology.n_infiniband_ports == 0) {
    reason = "there is no HCA with an active port";
  } else if (layout != Layout::automatic && !is_of_network(layout)) {
    reason = why_no_peers(layout, topology);
  }
  if (!reason) return std::nullopt;
  return fmt::format(
      "--layout {} cannot be had on host {}: {}", layout_name(layout), topology.host, *reason);
}

Environment layout_environment(const NcclRequest& request) {
  Environment variables = links_of(request.layout);
  // Buffers that a captured graph registers may take other ways than the same calls outside it.
  variables["NCCL_GRAPH_REGISTER"] = "0";
  // NCCL uses the network between hosts only, and takes two ranks on one GPU of a host for a
  // mistake: each rank is then a host of its own.
  if (request.shares_devices || is_of_network(request.layout)) {
    variables["NCCL_HOSTID"] = fmt::format("{}-rank{}", request.host, request.rank);
  }
  return variables;
}

Environment log_environment(const std::filesystem::path& log) {
  std::string escaped;  // NCCL reads %h and %p; %% is a %
  for (const char c : log.string()) escaped += c == '%' ? "%%" : std::string(1, c);
  return {{"NCCL_DEBUG", "INFO"},
          {"NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,NVLS,COLL,TUNING"},
          {"NCCL_DEBUG_FILE", escaped}};
}

Environment quiet_environment(const std::filesystem::path& log) {
  Environment variables = log_environment(log.string() + ".later");
  variables["NCCL_DEBUG"] = "WARN";
  return variables;
}

NcclSettings nccl_settings(const NcclRequest& request, const Environment& user) {
  NcclSettings settings{.variables = layout_environment(request)};
  for (const auto& [name, value] : settings.variables) {
    const auto theirs = user.find(name);
    if (theirs == user.end() || equal_values(theirs->second, value)) continue;
    throw ConfigError(fmt::format("{}={} is set, but --layout {}{} needs {}={}: unset it{}",
                                  name,
                                  theirs->second,
                                  layout_name(request.layout),
                                  request.shares_devices ? " with a shared GPU" : "",
                                  name,
                                  value,
                                  request.layout == Layout::automatic ? "" : ", or --layout auto"));
  }
  for (const auto& [name, value] : log_environment(request.log)) {
    const auto theirs = user.find(name);
    if (theirs != user.end() && !equal_values(theirs->second, value)) {
      settings.notes.push_back(fmt::format(
          "{}={} was replaced: what NCCL used is read from its log", name, theirs->second));
    }
    settings.variables[name] = value;
  }
  return settings;
}

Environment nccl_variables(const char* const* environment) {
  Environment variables;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view text(*environment);
    const size_t equals = text.find('=');
    if (!text.starts_with("NCCL_") || equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::optional<std::string> why_not_in_effect(Layout layout,
                                             const LoggedCommunicator& communicator,
                                             const GroupInfo& group) {
  if (layout == Layout::automatic || group.size < 2) return std::nullopt;
  std::optional<std::string> reason = unwanted_transport(layout, communicator, group);
  if (!reason) reason = unwanted_choice(layout, communicator);
  const bool is_silent = communicator.n_calls > 0 && communicator.to.empty() &&
                         communicator.from.empty() && !communicator.has_nvls;
  if (!reason && is_silent) reason = "NCCL's log names no channel of it";
  if (!reason) return std::nullopt;
  return fmt::format("--layout {} did not take effect in the {} group of rank {}: {}",
                     layout_name(layout),
                     axis_name(group.axis),
                     group.world_ranks[static_cast<size_t>(group.rank)],
                     *reason);
}

}  // namespace testbed
