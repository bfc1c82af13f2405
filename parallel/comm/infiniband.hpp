// The host's InfiniBand and RoCE ports, as Linux shows them in /sys/class/infiniband: which are up,
// and what they carried.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace testbed {

inline constexpr const char* infiniband_class = "/sys/class/infiniband";

// Ports of HCAs whose state is "4: ACTIVE".
int active_infiniband_ports(const std::filesystem::path& class_folder = infiniband_class);

// Bytes over all active ports since they came up, packets' headers included (port_xmit_data and
// port_rcv_data count words of four). nullopt: there is no active port, or one does not tell, or
// its counter is one of 32 bits that stopped at its end.
struct PortBytes {
  int64_t sent = 0;
  int64_t received = 0;
};
std::optional<PortBytes> infiniband_bytes(
    const std::filesystem::path& class_folder = infiniband_class);
// From one reading to a later one; nullopt where either is, or the counters were set back.
std::optional<PortBytes> between(const std::optional<PortBytes>& first,
                                 const std::optional<PortBytes>& last);

}  // namespace testbed
