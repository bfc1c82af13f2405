// What is known of a GPU that is there: the preset of configs/devices that it is called by, or what
// follows from its architecture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/device_spec.hpp"

namespace testbed {

// As the driver describes it.
struct GpuIdentity {
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string architecture;  // "sm_90"
  int64_t memory_bytes = 0;
  int64_t n_sm = 0;
  double clock_hz = 0.0;  // largest
  int64_t threads_per_sm = 0;
  int64_t registers_per_sm = 0;
  int64_t shared_bytes_per_sm = 0;
  int64_t l2_bytes = 0;
};

struct GpuSpec {
  DeviceSpec spec;
  std::optional<std::string> doubt;  // for the record's labels: where the peaks are from
};

// A preset lists the driver's names for it (gpu_names). Of a GPU that none lists the dense peaks
// are the architecture's rates per SM and clock at the largest clock; of an unknown architecture
// there are none.
GpuSpec spec_of_gpu(const GpuIdentity& gpu);

}  // namespace testbed
