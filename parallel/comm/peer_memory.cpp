#include "parallel/comm/peer_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <functional>

#include "kernels/base/errors.hpp"
#include "parallel/comm/gather_values.hpp"

namespace testbed {
namespace {

struct GpuOfRank {
  std::array<char, 32> pci_bus_id{};
  int32_t n_multiprocessors = 0;
};

int current_device() {
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda::check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

GpuOfRank gpu_of(int device) {
  GpuOfRank gpu;
  cuda::check(
      cudaDeviceGetPCIBusId(gpu.pci_bus_id.data(), static_cast<int>(gpu.pci_bus_id.size()), device),
      "cudaDeviceGetPCIBusId");
  gpu.n_multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  return gpu;
}

// Two processes of one GPU take turns on it: one that spins keeps the other from coming.
std::string shared_gpu(const std::vector<GpuOfRank>& gpus) {
  for (size_t b = 1; b < gpus.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (gpus[a].pci_bus_id == gpus[b].pci_bus_id) {
        return fmt::format("ranks {} and {} share GPU {}", a, b, gpus[a].pci_bus_id.data());
      }
    }
  }
  return "";
}

// This process's number for a GPU; -1 for one that it cannot see (CUDA_VISIBLE_DEVICES).
int device_of(const GpuOfRank& gpu) {
  int n_devices = 0;
  cuda::check(cudaGetDeviceCount(&n_devices), "cudaGetDeviceCount");
  for (int device = 0; device < n_devices; ++device) {
    if (gpu_of(device).pci_bus_id == gpu.pci_bus_id) return device;
  }
  return -1;
}

// A peer's GPU that cannot be seen may be mapped all the same: opening its memory will tell.
std::string inaccessible_gpu(const std::vector<GpuOfRank>& gpus, int rank) {
  for (int r = 0; r < static_cast<int>(gpus.size()); ++r) {
    const GpuOfRank& gpu = gpus[static_cast<size_t>(r)];
    const int device = device_of(gpu);
    if (r == rank || device < 0) continue;
    int can = 0;
    cuda::check(cudaDeviceCanAccessPeer(&can, current_device(), device), "cudaDeviceCanAccessPeer");
    if (can == 0) {
      return fmt::format("its GPU cannot access rank {}'s ({})", r, gpu.pci_bus_id.data());
    }
  }
  return "";
}

// A failed call of CUDA's is a reason too.
std::string reason_of(const std::function<std::string()>& step) {
  try {
    return step();
  } catch (const DeviceError& error) {
    return error.what();
  }
}

}  // namespace

MappedPeers::MappedPeers(cuda::Queue& queue, Communicator& host, int64_t capacity_bytes)
    : queue_(queue), host_(host) {
  CHECK(capacity_bytes > 0 && capacity_bytes % 32 == 0);
  why_not_ = group_reason();
  if (!why_not_.empty()) return;
  cudaIpcMemHandle_t handle{};
  why_not_ =
      agreed_reason(host_, reason_of([&] {
                      allocate(capacity_bytes);
                      cuda::check(cudaIpcGetMemHandle(&handle, own_.data()), "cudaIpcGetMemHandle");
                      return "";
                    }));
  if (!why_not_.empty()) return;
  const std::vector<cudaIpcMemHandle_t> handles = gather_values(host_, handle);
  offered_ = true;
  why_not_ = agreed_reason(host_, reason_of([&] {
                             open(handles);
                             return "";
                           }));
}

MappedPeers::~MappedPeers() {
  for (void* peer : opened_)
    cuda::check_quietly(cudaIpcCloseMemHandle(peer), "cudaIpcCloseMemHandle");
  // Memory may be freed once no one has it mapped. While an error unwinds the others may never
  // come.
  if (!offered_ || std::uncaught_exceptions() > 0) return;
  try {
    host_.barrier();
  } catch (const CommError&) {  // the job ends: whoever is missing is named where it matters
  }
}

std::string MappedPeers::group_reason() {
  const GroupInfo& group = host_.group();
  if (group.size == 1) return "a group of one rank";
  if (group.size > cuda::max_peers) {
    return fmt::format("{} ranks, at most {} can", group.size, cuda::max_peers);
  }
  if (group.n_nodes() > 1) return fmt::format("the ranks are on {} hosts", group.n_nodes());
  GpuOfRank mine;
  std::string reason = agreed_reason(host_, reason_of([&] {
                                       mine = gpu_of(current_device());
                                       return "";
                                     }));
  if (!reason.empty()) return reason;
  const std::vector<GpuOfRank> gpus = gather_values(host_, mine);
  reason = shared_gpu(gpus);
  if (!reason.empty()) return reason;
  for (const GpuOfRank& gpu : gpus) {
    memory_.max_blocks = std::min(memory_.max_blocks, cuda::peer_blocks(gpu.n_multiprocessors));
  }
  return agreed_reason(host_, reason_of([&] { return inaccessible_gpu(gpus, group.rank); }));
}

void MappedPeers::allocate(int64_t capacity_bytes) {
  own_ = cuda::device_tensor(DType::I32, {cuda::peer_allocation_bytes(capacity_bytes) / 4});
  state_ = cuda::device_tensor(DType::I32, {static_cast<int64_t>(sizeof(cuda::PeerState)) / 4});
  missing_ = cuda::pinned_tensor(DType::I32, {cuda::max_peers});
  std::memset(missing_.data(), 0, static_cast<size_t>(missing_.n_bytes()));
  for (const TensorView x : {own_.view(), state_.view()}) {
    cuda::check(cudaMemsetAsync(x.data(), 0, static_cast<size_t>(x.n_bytes()), queue_.stream()),
                "cudaMemsetAsync");
  }
  queue_.synchronize();
  memory_.capacity_bytes = capacity_bytes;
  memory_.rank = host_.rank();
  memory_.size = host_.size();
  memory_.state = static_cast<cuda::PeerState*>(state_.data());
  memory_.missing = static_cast<uint32_t*>(missing_.data());
}

void MappedPeers::open(const std::vector<cudaIpcMemHandle_t>& handles) {
  opened_.reserve(handles.size());
  for (int r = 0; r < host_.size(); ++r) {
    void* allocation = own_.data();
    if (r != host_.rank()) {
      cuda::check(cudaIpcOpenMemHandle(
                      &allocation, handles[static_cast<size_t>(r)], cudaIpcMemLazyEnablePeerAccess),
                  "cudaIpcOpenMemHandle");
      opened_.push_back(allocation);
    }
    point_at(r, static_cast<std::byte*>(allocation));
  }
}

void MappedPeers::point_at(int rank, std::byte* allocation) {
  memory_.regions[rank] = allocation;
  memory_.flags[rank] = reinterpret_cast<uint32_t*>(allocation + 2 * memory_.capacity_bytes);
}

void MappedPeers::set_deadline(double seconds) {
  memory_.deadline_ns = static_cast<int64_t>(seconds * 1e9);
}

std::vector<int> MappedPeers::missing() const {
  std::vector<int> ranks;
  ranks.reserve(cuda::max_peers);
  for (int r = 0; r < memory_.size; ++r) {
    // Written by the device while the host looks.
    if (*static_cast<const volatile uint32_t*>(memory_.missing + r) != 0) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace testbed
