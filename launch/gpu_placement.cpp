#include "launch/gpu_placement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "kernels/base/check.hpp"
#include "kernels/base/pci_bus_id.hpp"

namespace testbed {
namespace {

// One GPU may be seen from two containers, which are two hosts: its UUID tells.
bool is_same_gpu(const GpuSeat& a, const GpuSeat& b) {
  if (a.host == b.host && a.pci_bus_id == b.pci_bus_id) return true;
  return !a.uuid.empty() && a.uuid == b.uuid;
}

std::string refusal(const GpuSeat& a, const GpuSeat& b) {
  const bool is_mig = !a.uuid.empty() && !b.uuid.empty() && a.uuid != b.uuid;
  const std::string where =
      a.host == b.host
          ? fmt::format("ranks {} and {} of host {}", a.rank, b.rank, a.host)
          : fmt::format("ranks {} (host {}) and {} (host {})", a.rank, a.host, b.rank, b.host);
  return fmt::format(
      "{} both use {}GPU {} ({} visible to rank {}, {} to rank {}): start as many "
      "ranks a host as it has GPUs, or give --allow-shared-gpu",
      where,
      is_mig ? "instances of " : "",
      a.pci_bus_id,
      a.n_visible,
      a.rank,
      b.n_visible,
      b.rank);
}

}  // namespace

int device_index(int local_rank, int n_visible) {
  CHECK(local_rank >= 0 && n_visible > 0);
  return local_rank % n_visible;
}

std::optional<std::string> why_placement_fails(const std::vector<GpuSeat>& seats,
                                               bool allow_shared_gpu) {
  for (const GpuSeat& seat : seats) {
    if (seat.n_visible > 0) continue;
    return fmt::format(
        "rank {} sees no GPU on host {} (CUDA_VISIBLE_DEVICES?)", seat.rank, seat.host);
  }
  if (allow_shared_gpu) return std::nullopt;
  for (size_t i = 0; i < seats.size(); ++i) {
    for (size_t j = i + 1; j < seats.size(); ++j) {
      if (is_same_gpu(seats[i], seats[j])) return refusal(seats[i], seats[j]);
    }
  }
  return std::nullopt;
}

std::vector<std::string> shared_gpu_labels(const std::vector<GpuSeat>& seats) {
  std::vector<std::string> labels;
  std::vector<bool> is_told(seats.size(), false);
  labels.reserve(seats.size());
  for (size_t i = 0; i < seats.size(); ++i) {
    if (is_told[i]) continue;
    std::vector<int> ranks{seats[i].rank};
    ranks.reserve(seats.size());
    for (size_t j = i + 1; j < seats.size(); ++j) {
      if (!is_same_gpu(seats[i], seats[j])) continue;
      is_told[j] = true;
      ranks.push_back(seats[j].rank);
    }
    if (ranks.size() < 2) continue;
    labels.push_back(fmt::format("shared GPU {} of host {}: ranks {}",
                                 seats[i].pci_bus_id,
                                 seats[i].host,
                                 fmt::join(ranks, ", ")));
  }
  return labels;
}

bool shares_gpu(const std::vector<GpuSeat>& seats, const std::string& host) {
  for (size_t i = 0; i < seats.size(); ++i) {
    for (size_t j = i + 1; j < seats.size(); ++j) {
      if (seats[i].host != host && seats[j].host != host) continue;
      if (is_same_gpu(seats[i], seats[j])) return true;
    }
  }
  return false;
}

std::optional<DeviceLinks> device_links(const Nvml& nvml, const std::string& pci_bus_id) {
  const auto device = nvml.device(pci_bus_id);
  if (!device) return std::nullopt;
  const auto links = device->describe().links;
  if (!links) return std::nullopt;
  DeviceLinks result{.pci_bus_id = canonical_pci_bus_id(pci_bus_id)};
  result.peers.reserve(links->size());
  for (const NvLink& link : *links) {
    if (link.end == NvLink::End::nvswitch) ++result.n_switch_links;
    if (link.end == NvLink::End::gpu && link.remote_pci_bus_id) {
      result.peers.push_back(*link.remote_pci_bus_id);
    }
  }
  return result;
}

std::vector<std::string> gpus_of_host(const std::vector<GpuSeat>& seats, const std::string& host) {
  std::map<int, std::string> by_local_rank;
  for (const GpuSeat& seat : seats) {
    if (seat.host == host) by_local_rank[seat.local_rank] = seat.pci_bus_id;
  }
  std::vector<std::string> gpus;
  gpus.reserve(by_local_rank.size());
  for (const auto& [local_rank, pci_bus_id] : by_local_rank) gpus.push_back(pci_bus_id);
  return gpus;
}

}  // namespace testbed
