// --layout: the links that ranks use. For GPUs it is what NCCL is told before it starts, and what
// its log must then show: a layout that cannot be had, or did not take effect, is an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/nccl_log.hpp"
#include "parallel/parallel_options.hpp"

namespace testbed {

// Why ranks on processors cannot have it; nullopt: they can.
std::optional<std::string> why_not_on_cpu(Layout layout);

using Environment = std::map<std::string, std::string>;

// A rank's GPU and what its NVLinks end in.
struct DeviceLinks {
  std::string pci_bus_id;          // "0000:1b:00.0"
  int n_switch_links = 0;          // active links to NVSwitches
  std::vector<std::string> peers;  // GPUs at the other end of its active links
};

// What the ranks of one host have.
struct HostTopology {
  std::string host;
  std::vector<DeviceLinks> devices;  // one per rank
  bool links_known = false;          // NVML told; else `devices` say nothing of links
  int n_infiniband_ports = 0;        // active
  bool shares_devices = false;       // --allow-shared-gpu, and some rank does
};

bool nvlink_between(const DeviceLinks& a, const DeviceLinks& b);
// What peer-to-peer goes over, if it is the same for all pairs.
P2pLink p2p_link(const HostTopology& topology);

// Why the host's GPUs cannot have it; nullopt: they can, as far as is known.
std::optional<std::string> why_not(Layout layout, const HostTopology& topology);

// What of NCCL is set for a rank. log: a file of this rank's own.
struct NcclRequest {
  Layout layout = Layout::automatic;
  int rank = 0;
  std::string host;
  bool shares_devices = false;
  std::filesystem::path log;
};
struct NcclSettings {
  Environment variables;           // to set before NCCL's first call
  std::vector<std::string> notes;  // what of the user's was replaced
};
// Throws ConfigError where a variable of the user's asks for other links than the layout.
NcclSettings nccl_settings(const NcclRequest& request, const Environment& user);

// The variables that layout_environment() means links by, and so may refuse.
Environment layout_environment(const NcclRequest& request);
// Those of NCCL's log.
Environment log_environment(const std::filesystem::path& log);
// To set in front of ncclResetDebugInit(), when the log has told all: collectives that are not in
// a graph cost a line each. The file is another one, as NCCL truncates what it opens.
Environment quiet_environment(const std::filesystem::path& log);

// Of this process: NCCL_*.
Environment nccl_variables(const char* const* environment);

// Why what a communicator did is not the layout; nullopt: it is, or the communicator did nothing.
// After its first collectives and messages: NCCL connects at first use. Rank 0's log has the
// algorithms too.
std::optional<std::string> why_not_in_effect(Layout layout,
                                             const LoggedCommunicator& communicator,
                                             const GroupInfo& group);

}  // namespace testbed
