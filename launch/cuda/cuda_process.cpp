#include "launch/cuda/cuda_process.hpp"

#include <cublasLt.h>
#include <fmt/format.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/base/pci_bus_id.hpp"
#include "launch/gpu.hpp"
#include "parallel/comm/infiniband.hpp"
#include "runtime/config/gpu_presets.hpp"

extern char** environ;

namespace testbed {
namespace {

bool has_driver() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidiactl", ignored);
}

int count_devices() {
  int n = 0;
  const cudaError_t code = cudaGetDeviceCount(&n);
  if (code == cudaErrorNoDevice) return 0;
  if (code == cudaErrorInsufficientDriver && !has_driver()) {  // what CUDA says of none, too
    cudaGetLastError();
    throw ConfigError("this host has no NVIDIA driver (cudaGetDeviceCount: code 35, " +
                      std::string(cudaGetErrorName(code)) + ")");
  }
  if (code == cudaErrorInsufficientDriver) {
    throw ConfigError(fmt::format("--device cuda: cudaGetDeviceCount: {} (code {}, {})",
                                  cudaGetErrorString(code),
                                  static_cast<int>(code),
                                  cudaGetErrorName(code)));
  }
  cuda::check(code, "cudaGetDeviceCount");
  return n;
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::vector<GpuSeat> all_seats(ControlChannel& control, const GpuSeat& mine) {
  ByteWriter out;
  out.put(mine.rank);
  out.put(mine.local_rank);
  out.put(mine.n_visible);
  out.put(mine.host);
  out.put(mine.pci_bus_id);
  out.put(mine.uuid);
  std::vector<GpuSeat> seats;
  for (const Bytes& bytes : control.all_gather(out.take())) {
    ByteReader in(bytes);
    GpuSeat& seat = seats.emplace_back();
    in.get(seat.rank);
    in.get(seat.local_rank);
    in.get(seat.n_visible);
    in.get(seat.host);
    in.get(seat.pci_bus_id);
    in.get(seat.uuid);
  }
  return seats;
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

int n_visible_gpus() {
  int n = 0;
  const cudaError_t code = cudaGetDeviceCount(&n);
  cudaGetLastError();
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    if (!has_driver()) return 0;
  }
  cuda::check(code, "cudaGetDeviceCount");
  return n;
}

CudaProcess::CudaProcess(const MpiWorld& world, ControlChannel& control, const GpuOptions& options)
    : rank_(world.rank()), layout_(options.layout) {
  GpuSeat mine;
  agree_on(control, [&] { mine = take_seat(world); });
  seats_ = all_seats(control, mine);
  if (const auto reason = why_placement_fails(seats_, options.allow_shared_gpu)) {
    throw ConfigError(*reason);
  }
  for (std::string& label : shared_gpu_labels(seats_)) labels_.push_back(std::move(label));
  binding_ = bind_to_pci(gpus_of_host(seats_, world.host()), world.local_rank());
  choose_links(world, control, options);
  streams_ = std::make_shared<CudaStreams>();
}

CudaProcess::~CudaProcess() {
  std::error_code ignored;
  for (const char* ending : {"", ".later"}) {
    if (!log_.empty()) std::filesystem::remove(log_.string() + ending, ignored);
  }
}

GpuSeat CudaProcess::take_seat(const MpiWorld& world) {
  GpuSeat mine{.rank = world.rank(),
               .host = world.host(),
               .local_rank = world.local_rank(),
               .n_visible = count_devices(),
               .pci_bus_id = {},
               .uuid = {}};
  if (mine.n_visible == 0) return mine;  // refused with all ranks' seats at hand
  cuda::check(cudaSetDevice(device_index(mine.local_rank, mine.n_visible)), "cudaSetDevice");
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  char pci[32] = {};
  cuda::check(cudaDeviceGetPCIBusId(pci, sizeof pci, device), "cudaDeviceGetPCIBusId");
  mine.pci_bus_id = canonical_pci_bus_id(pci);
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  mine.uuid = uuid_text(properties.uuid);
  int clock_khz = 0;
  cuda::check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device),
              "cudaDeviceGetAttribute");
  const GpuIdentity identity{
      .name = properties.name,
      .architecture = fmt::format("sm_{}{}", properties.major, properties.minor),
      .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
      .n_sm = properties.multiProcessorCount,
      .clock_hz = clock_khz * 1e3,
      .threads_per_sm = properties.maxThreadsPerMultiProcessor,
      .registers_per_sm = properties.regsPerMultiprocessor,
      .shared_bytes_per_sm = static_cast<int64_t>(properties.sharedMemPerMultiprocessor),
      .l2_bytes = properties.l2CacheSize};
  GpuSpec found = spec_of_gpu(identity);
  spec_ = std::move(found.spec);
  if (found.doubt) labels_.push_back(*found.doubt);
  description_ =
      fmt::format("{} ({}, {})", properties.name, identity.architecture, mine.pci_bus_id);
  nvml_device_ = nvml_.device(mine.pci_bus_id);
  return mine;
}

// Before NCCL's first call: it reads its environment once.
void CudaProcess::choose_links(const MpiWorld& world,
                               ControlChannel& control,
                               const GpuOptions& options) {
  agree_on(control, [&] {
    topology_ = {.host = world.host(),
                 .devices = {},
                 .links_known = true,
                 .n_infiniband_ports = active_infiniband_ports(),
                 .shares_devices = shares_gpu(seats_, world.host())};
    for (const std::string& gpu : gpus_of_host(seats_, world.host())) {
      const std::optional<DeviceLinks> links = device_links(nvml_, gpu);
      topology_.links_known = topology_.links_known && links.has_value();
      topology_.devices.push_back(links.value_or(DeviceLinks{.pci_bus_id = gpu, .peers = {}}));
    }
    if (const auto reason = why_not(options.layout, topology_)) throw ConfigError(*reason);
    log_ = std::filesystem::temp_directory_path() /
           fmt::format("testbed-nccl.{}.{}.log", world.host(), getpid());
    NcclSettings settings = nccl_settings({.layout = options.layout,
                                           .rank = world.rank(),
                                           .host = world.host(),
                                           .shares_devices = topology_.shares_devices,
                                           .log = log_},
                                          nccl_variables(environ));
    if (options.deterministic) settings.variables["NCCL_NVLS_ENABLE"] = "0";
    for (const auto& [name, value] : settings.variables) {
      setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
    nccl_ = std::move(settings.variables);
    for (std::string& note : settings.notes) labels_.push_back(std::move(note));
  });
}

int64_t CudaProcess::free_bytes() const {
  size_t free = 0;
  size_t total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

void CudaProcess::quieten_nccl() {
  for (const auto& [name, value] : quiet_environment(log_)) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  // Deprecated without another way to be had: not in a header to come, it would be a build error.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  ncclResetDebugInit();
#pragma GCC diagnostic pop
}

std::map<std::string, std::string> CudaProcess::environment() const {
  std::map<std::string, std::string> all = nvml_fingerprint(nvml_, seat().pci_bus_id);
  for (const auto& [name, value] : nccl_) all[name] = value;
  for (const char* name : {"CUDA_VISIBLE_DEVICES",
                           "CUDA_LAUNCH_BLOCKING",
                           "CUDA_MODULE_LOADING",
                           "CUDA_DEVICE_MAX_CONNECTIONS",
                           "NVIDIA_TF32_OVERRIDE"}) {
    if (const char* value = std::getenv(name)) all[name] = value;
  }
  return all;
}

std::map<std::string, std::string> CudaProcess::libraries() const {
  int runtime = 0;
  int driver = 0;
  int nccl = 0;
  cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  cuda::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  ncclGetVersion(&nccl);
  return {{"cuda_runtime", version_text(runtime)},
          {"cuda_driver", version_text(driver)},
          {"cublaslt", std::to_string(cublasLtGetVersion())},
          {"nccl", fmt::format("{}.{}.{}", nccl / 10000, nccl / 100 % 100, nccl % 100)}};
}

}  // namespace testbed
