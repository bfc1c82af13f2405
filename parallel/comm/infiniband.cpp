#include "parallel/comm/infiniband.hpp"

#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace testbed {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> active_ports(const fs::path& class_folder) {
  std::error_code ignored;
  std::vector<fs::path> active;
  for (const auto& hca : fs::directory_iterator(class_folder, ignored)) {
    for (const auto& port : fs::directory_iterator(hca.path() / "ports", ignored)) {
      std::ifstream file(port.path() / "state");
      std::string state;
      if (std::getline(file, state) && state.starts_with("4:")) active.push_back(port.path());
    }
  }
  return active;
}

std::optional<int64_t> counted_bytes(const fs::path& counter) {
  constexpr int64_t end_of_32_bits = 0xffffffff;
  constexpr int64_t word_bytes = 4;
  std::ifstream file(counter);
  int64_t words = 0;
  if (!(file >> words) || words < 0 || words == end_of_32_bits) return std::nullopt;
  return words * word_bytes;
}

}  // namespace

int active_infiniband_ports(const fs::path& class_folder) {
  return static_cast<int>(active_ports(class_folder).size());
}

std::optional<PortBytes> infiniband_bytes(const fs::path& class_folder) {
  const std::vector<fs::path> ports = active_ports(class_folder);
  if (ports.empty()) return std::nullopt;
  PortBytes sum;
  for (const fs::path& port : ports) {
    const auto sent = counted_bytes(port / "counters" / "port_xmit_data");
    const auto received = counted_bytes(port / "counters" / "port_rcv_data");
    if (!sent || !received) return std::nullopt;
    sum.sent += *sent;
    sum.received += *received;
  }
  return sum;
}

std::optional<PortBytes> between(const std::optional<PortBytes>& first,
                                 const std::optional<PortBytes>& last) {
  if (!first || !last || last->sent < first->sent || last->received < first->received) {
    return std::nullopt;
  }
  return PortBytes{last->sent - first->sent, last->received - first->received};
}

}  // namespace testbed
