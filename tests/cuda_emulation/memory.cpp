// Allocations: of the device, pinned, registered; their IPC handles.
#include "tests/cuda_emulation/memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/cuda_emulation/state.hpp"

namespace emulation {
namespace {

using Ranges = std::map<const std::byte*, Range>;  // by start
Ranges& ranges() {
  static Ranges& all = *new Ranges;
  return all;
}

size_t bytes_in_use(int device) {
  size_t n = 0;
  for (const auto& [start, range] : ranges()) {
    if (range.kind == MemoryKind::device && range.device == device) n += range.n_bytes;
  }
  return n;
}

Range* range_at(const void* p, MemoryKind kind) {
  const auto found = ranges().find(static_cast<const std::byte*>(p));
  return found != ranges().end() && found->second.kind == kind ? &found->second : nullptr;
}

cudaError_t allocate(void** p, size_t n_bytes, MemoryKind kind) {
  Range range{.kind = kind, .device = current_device()};
  if (!map_range(range, n_bytes, -1)) return cudaErrorMemoryAllocation;
  add_range(range);
  *p = range.start;
  return cudaSuccess;
}

cudaError_t free_at(void* p, MemoryKind kind) {
  const Range* range = range_at(p, kind);
  if (range == nullptr) return cudaErrorInvalidValue;
  if (!padding_is_whole(*range)) {
    std::fprintf(stderr,
                 "emulation: something wrote past the end of the %zu bytes at %p\n",
                 range->n_bytes,
                 p);
    std::abort();
  }
  remove_range(*range);
  return cudaSuccess;
}

struct Handle {  // in a cudaIpcMemHandle_t
  uint64_t magic;
  int64_t pid;
  int32_t fd;
  int32_t device;
  uint64_t n_bytes;
};
constexpr uint64_t handle_magic = 0x7265'6d75'6c61'7465U;
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

cudaError_t open_handle(void** p, const cudaIpcMemHandle_t& bytes) {
  Handle handle{};
  std::memcpy(&handle, &bytes, sizeof handle);
  // A process may not open what it made itself.
  if (handle.magic != handle_magic || handle.pid == getpid()) return cudaErrorInvalidValue;
  std::array<char, 64> path{};
  std::snprintf(
      path.data(), path.size(), "/proc/%lld/fd/%d", static_cast<long long>(handle.pid), handle.fd);
  const int fd = open(path.data(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return cudaErrorMapBufferObjectFailed;
  Range range{.kind = MemoryKind::opened, .device = current_device()};
  if (!map_range(range, handle.n_bytes, fd)) {
    close(fd);
    return cudaErrorMapBufferObjectFailed;
  }
  add_range(range);
  *p = range.start;
  return cudaSuccess;
}

}  // namespace

Range* find_range(const void* p, size_t n_bytes) {
  const auto* at = static_cast<const std::byte*>(p);
  auto after = ranges().upper_bound(at);
  if (after == ranges().begin()) return nullptr;
  Range& range = std::prev(after)->second;
  return n_bytes <= range.n_bytes &&
                 at - range.start <= static_cast<std::ptrdiff_t>(range.n_bytes - n_bytes)
             ? &range
             : nullptr;
}

bool is_pageable(const void* p, size_t n_bytes) { return find_range(p, n_bytes) == nullptr; }

FaultPlace place_of(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  for (const auto& [start, range] : ranges()) {
    if (at >= range.mapping && at < range.mapping + range.mapping_bytes) {
      return {start, range.n_bytes};
    }
  }
  return {};
}

bool is_device_memory(const void* p, size_t n_bytes) {
  const std::lock_guard lock(state().mutex);
  const Range* range = find_range(p, n_bytes);
  return range != nullptr &&
         (range->kind == MemoryKind::device || range->kind == MemoryKind::opened);
}

void add_range(const Range& range) { ranges()[range.start] = range; }
void remove_range(const Range& range) {
  const Range copy = range;
  ranges().erase(copy.start);
  if (copy.mapping != nullptr) unmap_range(copy);
}

Live live() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Live n{.streams = static_cast<int64_t>(all.streams.size()),
         .events = static_cast<int64_t>(all.events.size()),
         .graphs = static_cast<int64_t>(all.graphs.size()),
         .graph_execs = static_cast<int64_t>(all.graph_execs.size())};
  for (const auto& [start, range] : ranges()) {
    switch (range.kind) {
      case MemoryKind::device:
        ++n.device_allocations;
        n.device_bytes += static_cast<int64_t>(range.n_bytes);
        break;
      case MemoryKind::opened:
        ++n.opened_ipc_handles;
        break;
      case MemoryKind::pinned:
      case MemoryKind::registered:
        ++n.pinned_allocations;
        break;
    }
  }
  return n;
}

}  // namespace emulation

using emulation::entry;
using emulation::MemoryKind;
using emulation::WhileCapturing;

cudaError_t cudaMalloc(void** p, size_t n_bytes) {
  return entry(
      "cudaMalloc",
      [&] {
        if (p == nullptr) return cudaErrorInvalidValue;
        *p = nullptr;
        if (n_bytes == 0) return cudaSuccess;
        const auto capacity = static_cast<size_t>(emulation::device_bytes());
        if (n_bytes > capacity - emulation::bytes_in_use(emulation::current_device())) {
          return cudaErrorMemoryAllocation;
        }
        return emulation::allocate(p, n_bytes, MemoryKind::device);
      },
      WhileCapturing::refused,
      cudaErrorMemoryAllocation);
}

cudaError_t cudaHostAlloc(void** p, size_t n_bytes, unsigned /*flags*/) {
  return entry(
      "cudaHostAlloc",
      [&] {
        if (p == nullptr) return cudaErrorInvalidValue;
        *p = nullptr;
        if (n_bytes == 0) return cudaSuccess;
        return emulation::allocate(p, n_bytes, MemoryKind::pinned);
      },
      WhileCapturing::refused,
      cudaErrorMemoryAllocation);
}

// Freeing waits for the device.
cudaError_t cudaFree(void* p) {
  return emulation::release(
      "cudaFree",
      [&] {
        if (p == nullptr) return cudaSuccess;
        if (const cudaError_t code = emulation::wait_for_all(); code != cudaSuccess) return code;
        return emulation::free_at(p, MemoryKind::device);
      },
      WhileCapturing::refused);
}

cudaError_t cudaFreeHost(void* p) {
  return emulation::release(
      "cudaFreeHost",
      [&] {
        if (p == nullptr) return cudaSuccess;
        if (const cudaError_t code = emulation::wait_for_all(); code != cudaSuccess) return code;
        return emulation::free_at(p, MemoryKind::pinned);
      },
      WhileCapturing::refused);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return entry("cudaMemGetInfo", [&] {
    if (free_bytes == nullptr || total_bytes == nullptr) return cudaErrorInvalidValue;
    *total_bytes = static_cast<size_t>(emulation::device_bytes());
    *free_bytes = *total_bytes - emulation::bytes_in_use(emulation::current_device());
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* p, size_t n_bytes, unsigned /*flags*/) {
  return entry("cudaHostRegister", [&] {
    if (p == nullptr || n_bytes == 0) return cudaErrorInvalidValue;
    if (emulation::find_range(p, 1) != nullptr) return cudaErrorHostMemoryAlreadyRegistered;
    emulation::add_range(
        {.kind = MemoryKind::registered, .start = static_cast<std::byte*>(p), .n_bytes = n_bytes});
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* p) {
  return emulation::release("cudaHostUnregister", [&] {
    const emulation::Range* range = emulation::range_at(p, MemoryKind::registered);
    if (range == nullptr) return cudaErrorHostMemoryNotRegistered;
    emulation::remove_range(*range);
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned /*flags*/) {
  return entry("cudaHostGetDevicePointer", [&] {
    if (device == nullptr || emulation::is_pageable(host, 1)) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return entry("cudaPointerGetAttributes", [&] {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    const emulation::Range* range = emulation::find_range(p, 1);
    if (range == nullptr) return cudaSuccess;
    const bool on_host = range->kind == MemoryKind::pinned || range->kind == MemoryKind::registered;
    attributes->type = on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->device = range->device;
    attributes->devicePointer = const_cast<void*>(p);
    attributes->hostPointer = on_host ? const_cast<void*>(p) : nullptr;
    return cudaSuccess;
  });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  return entry("cudaIpcGetMemHandle", [&] {
    emulation::Range* range = emulation::range_at(p, MemoryKind::device);
    if (handle == nullptr || range == nullptr) return cudaErrorInvalidValue;
    if (range->fd < 0 && !emulation::share_range(*range)) return cudaErrorMapBufferObjectFailed;
    const emulation::Handle made{
        emulation::handle_magic, getpid(), range->fd, range->device, range->n_bytes};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &made, sizeof made);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t handle, unsigned flags) {
  return entry(
      "cudaIpcOpenMemHandle",
      [&] {
        if (p == nullptr || flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
        return emulation::open_handle(p, handle);
      },
      WhileCapturing::refused,
      cudaErrorMapBufferObjectFailed);
}

cudaError_t cudaIpcCloseMemHandle(void* p) {
  return emulation::release("cudaIpcCloseMemHandle", [&] {
    emulation::run_default_stream();  // it may still write there
    const emulation::Range* range = emulation::range_at(p, MemoryKind::opened);
    if (range == nullptr) return cudaErrorInvalidValue;
    emulation::remove_range(*range);
    return cudaSuccess;
  });
}
