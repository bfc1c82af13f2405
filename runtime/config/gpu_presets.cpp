#include "runtime/config/gpu_presets.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/config/dense_peaks.hpp"
#include "runtime/config/device_config.hpp"
#include "runtime/config/presets.hpp"

namespace testbed {
namespace {

std::optional<DeviceSpec> preset_of(const std::string& gpu_name) {
  for (const std::string& name : preset_names("devices")) {
    DeviceSpec spec = read_device(name);
    const std::vector<std::string>& names = spec.gpu_names;
    if (std::find(names.begin(), names.end(), gpu_name) != names.end()) return spec;
  }
  return std::nullopt;
}

}  // namespace

GpuSpec spec_of_gpu(const GpuIdentity& gpu) {
  if (std::optional<DeviceSpec> known = preset_of(gpu.name)) {
    return {.spec = std::move(*known), .doubt = std::nullopt};
  }
  GpuSpec found;
  found.spec = {.name = gpu.name,
                .description = gpu.name,
                .gpu_names = {gpu.name},
                .memory_bytes = gpu.memory_bytes,
                .chip = {.architecture = gpu.architecture,
                         .boost_hz = gpu.clock_hz,
                         .n_sm = gpu.n_sm,
                         .threads_per_sm = gpu.threads_per_sm,
                         .registers_per_sm = gpu.registers_per_sm,
                         .shared_bytes_per_sm = gpu.shared_bytes_per_sm,
                         .l2_bytes = gpu.l2_bytes}};
  found.spec.peak_flops = dense_peaks(found.spec.chip);
  found.doubt =
      found.spec.peak_flops.empty()
          ? fmt::format("no peak is known for {} ({}): no MFU", gpu.name, gpu.architecture)
          : fmt::format("no preset is called {}: MFU is of {}'s dense rates at {:.0f} MHz",
                        gpu.name,
                        gpu.architecture,
                        gpu.clock_hz * 1e-6);
  return found;
}

}  // namespace testbed
