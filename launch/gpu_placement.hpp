// Which GPU a rank has (D18): its place among the ranks of its host, over the devices that the
// process sees. Two ranks on one GPU are a mistake unless --allow-shared-gpu says otherwise.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/nvml.hpp"
#include "parallel/comm/layout.hpp"

namespace testbed {

// A rank and the GPU it took, as CUDA names it; all ranks tell each other.
struct GpuSeat {
  int rank = 0;
  std::string host;
  int local_rank = 0;
  int n_visible = 0;       // devices that the process sees
  std::string pci_bus_id;  // canonical
  std::string uuid;        // empty: not known
};

// Among the visible devices. A launcher may show each rank its own: then every one takes its first.
// n_visible > 0.
int device_index(int local_rank, int n_visible);

// Why the ranks cannot run so; nullopt: they can. The same on every rank.
std::optional<std::string> why_placement_fails(const std::vector<GpuSeat>& seats,
                                               bool allow_shared_gpu);

// One for each GPU that several ranks use: "shared GPU 0000:1b:00.0 of host a: ranks 0, 1".
std::vector<std::string> shared_gpu_labels(const std::vector<GpuSeat>& seats);

// Whether some ranks of the host share a GPU: NCCL then takes each of them for a host of its own.
bool shares_gpu(const std::vector<GpuSeat>& seats, const std::string& host);

// What ends a GPU's NVLinks, for the layout; nullopt: NVML does not tell.
std::optional<DeviceLinks> device_links(const Nvml& nvml, const std::string& pci_bus_id);

// In the order of local ranks, for bind_to_pci.
std::vector<std::string> gpus_of_host(const std::vector<GpuSeat>& seats, const std::string& host);

}  // namespace testbed
