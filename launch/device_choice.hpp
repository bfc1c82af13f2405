// What --device auto may choose.
#pragma once

#include <filesystem>

#include "runtime/config/run_config.hpp"

namespace testbed {

// Hardware that would be left idle in silence is a mistake, not a fallback: throws ConfigError if
// the choice is automatic and the NVIDIA driver's device file is there.
void refuse_idle_gpu(DeviceChoice device,
                     const std::filesystem::path& device_file = "/dev/nvidiactl");

// Options that only GPUs have are refused where ranks run on processors.
void refuse_gpu_options(Layout layout, bool allow_shared_gpu);

// Options that only a simulated cluster has are refused where none is simulated.
void refuse_idle_cluster_options(const ClusterConfig& cluster);

}  // namespace testbed
