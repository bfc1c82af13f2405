#include "launch/device_choice.hpp"

#include <system_error>

#include "kernels/base/errors.hpp"
#include "parallel/comm/layout.hpp"

namespace testbed {

void refuse_idle_gpu(DeviceChoice device, const std::filesystem::path& device_file) {
  std::error_code ignored;
  if (device == DeviceChoice::automatic && std::filesystem::exists(device_file, ignored)) {
    throw ConfigError(
        "this host has an NVIDIA device and this build no CUDA device: --device cpu runs on the "
        "processor, --device sim simulates");
  }
}

void refuse_gpu_options(Layout layout, bool allow_shared_gpu) {
  if (const auto reason = why_not_on_cpu(layout)) throw ConfigError(*reason);
  if (allow_shared_gpu) throw ConfigError("--allow-shared-gpu is of --device cuda");
}

void refuse_idle_cluster_options(const ClusterConfig& cluster) {
  if (!cluster.name && (cluster.link_gb_s || cluster.link_us || cluster.algorithm)) {
    throw ConfigError(
        "--link-gb-s, --link-us and --algorithm are of a simulated cluster: give --cluster, or "
        "--device sim");
  }
}

}  // namespace testbed
