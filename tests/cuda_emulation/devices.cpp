// Which GPUs there are: as many as the environment says, all alike.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_emulation/state.hpp"

namespace emulation {
namespace {

int64_t number_of(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const int64_t value = std::strtoll(text, &end, 10);
  if (*end != '\0' || value < 0) {
    std::fprintf(stderr, "emulation: %s=%s is no number\n", variable, text);
    std::abort();
  }
  return value;
}

// Physical devices by ordinal. CUDA_VISIBLE_DEVICES counts up to its first invalid entry.
std::vector<int> visible_devices() {
  const auto n = static_cast<int>(number_of("TESTBED_EMULATED_GPUS", 8));
  std::vector<int> devices;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  for (int i = 0; list == nullptr && i < n; ++i) devices.push_back(i);
  while (list != nullptr && *list != '\0') {
    char* end = nullptr;
    const int64_t device = std::strtol(list, &end, 10);
    if (end == list || (*end != ',' && *end != '\0') || device < 0 || device >= n) break;
    const int physical = static_cast<int>(device);
    // A device named twice: there is none at all.
    if (std::count(devices.begin(), devices.end(), physical) != 0) return {};
    devices.push_back(physical);
    list = *end == ',' ? end + 1 : end;
  }
  return devices;
}

const std::vector<int>& devices() {
  static const std::vector<int> all = visible_devices();
  return all;
}

thread_local int current = 0;

bool is_device(int device) { return device >= 0 && device < n_devices(); }

}  // namespace

int n_devices() { return static_cast<int>(devices().size()); }
int current_device() { return current; }
int physical_device(int device) { return devices()[static_cast<size_t>(device)]; }
int64_t device_bytes() {
  static const int64_t n = number_of("TESTBED_EMULATED_GPU_BYTES", int64_t{8} << 30);
  return n;
}
int compute_capability() {
  static const auto n = static_cast<int>(number_of("TESTBED_EMULATED_SM", 90));
  return n;
}

namespace {

constexpr int n_multiprocessors = 132;

int shared_bytes_per_block() { return (compute_capability() == 80 ? 163 : 227) << 10; }

void describe(cudaDeviceProp& p, int device) {
  p = {};
  std::snprintf(p.name, sizeof p.name, "Emulated GPU (sm_%d)", compute_capability());
  p.totalGlobalMem = static_cast<size_t>(device_bytes());
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = static_cast<size_t>(shared_bytes_per_block());
  p.sharedMemPerMultiprocessor = p.sharedMemPerBlockOptin + 1024;
  p.reservedSharedMemPerBlock = 1024;
  p.regsPerBlock = 65536;
  p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.multiProcessorCount = n_multiprocessors;
  p.major = compute_capability() / 10;
  p.minor = compute_capability() % 10;
  p.l2CacheSize = 1 << 20;  // small, so that what has to exceed it is
  p.memoryBusWidth = 5120;
  p.asyncEngineCount = 3;
  p.concurrentKernels = 1;
  p.canMapHostMemory = 1;
  p.unifiedAddressing = 1;
  p.streamPrioritiesSupported = 1;
  p.ECCEnabled = 1;
  p.pciBusID = physical_device(device) + 1;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = 65535;
  p.maxGridSize[2] = 65535;
  p.maxThreadsDim[0] = 1024;
  p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  // The UUID tells GPUs apart.
  std::memcpy(p.uuid.bytes, "emulated-gpu", 12);
  p.uuid.bytes[15] = static_cast<char>(physical_device(device));
}

cudaError_t attribute(int* value, cudaDeviceAttr attr, int device) {
  cudaDeviceProp p;
  describe(p, device);
  switch (attr) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = shared_bytes_per_block();
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = shared_bytes_per_block() + 1024;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrClockRate:
      *value = 1'980'000;  // kHz
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 2'619'000;  // kHz
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = p.memoryBusWidth;
      break;
    case cudaDevAttrPciBusId:
      *value = p.pciBusID;
      break;
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
      *value = 0;
      break;
    case cudaDevAttrEccEnabled:
      *value = 1;
      break;
    case cudaDevAttrComputeMode:
      *value = cudaComputeModeDefault;
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace emulation

using emulation::entry;

cudaError_t cudaGetDeviceCount(int* count) {
  if (count != nullptr) *count = 0;
  return entry("cudaGetDeviceCount", [&] {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = emulation::n_devices();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return entry("cudaSetDevice", [&] {
    if (!emulation::is_device(device)) return cudaErrorInvalidDevice;
    emulation::current = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return entry("cudaGetDevice", [&] {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = emulation::current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return entry("cudaGetDeviceProperties", [&] {
    if (properties == nullptr) return cudaErrorInvalidValue;
    if (!emulation::is_device(device)) return cudaErrorInvalidDevice;
    emulation::describe(*properties, device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return entry("cudaDeviceGetAttribute", [&] {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (!emulation::is_device(device)) return cudaErrorInvalidDevice;
    return emulation::attribute(value, attr, device);
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int n_bytes, int device) {
  return entry("cudaDeviceGetPCIBusId", [&] {
    if (text == nullptr || n_bytes < 13) return cudaErrorInvalidValue;
    if (!emulation::is_device(device)) return cudaErrorInvalidDevice;
    std::snprintf(text,
                  static_cast<size_t>(n_bytes),
                  "0000:%02X:00.0",
                  static_cast<unsigned>(emulation::physical_device(device)) + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return entry("cudaDeviceCanAccessPeer", [&] {
    if (can == nullptr) return cudaErrorInvalidValue;
    if (!emulation::is_device(device) || !emulation::is_device(peer)) return cudaErrorInvalidDevice;
    *can = device == peer ? 0 : 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attr, int device, int peer) {
  return entry("cudaDeviceGetP2PAttribute", [&] {
    if (value == nullptr || device == peer) return cudaErrorInvalidValue;
    if (!emulation::is_device(device) || !emulation::is_device(peer)) return cudaErrorInvalidDevice;
    *value = attr == cudaDevP2PAttrPerformanceRank ? 0 : 1;
    return cudaSuccess;
  });
}

// The versions are known without a driver, which is then 0.
cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return cudaErrorInvalidValue;
  const std::lock_guard lock(emulation::state().mutex);
  *version = emulation::standing_error() == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION;
  return cudaSuccess;
}
