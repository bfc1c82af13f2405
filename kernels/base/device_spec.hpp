// DeviceSpec: what a device can do at most, and how close real kernels come. Plain data, read from
// configs/devices/*.toml; the simulator charges ops by it, `plan` states rooflines from it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/device_timing.hpp"

namespace testbed {

// What a multiply-accumulate is done in: peaks are stated per math type. f32 is plain f32
// arithmetic (CUDA cores), tf32 the tensor cores' reading of it.
enum class MathType : uint8_t { f64, f32, tf32, f16, bf16, fp8, int8, fp4 };
constexpr std::string_view math_name(MathType type) {
  constexpr std::string_view names[] = {"f64", "f32", "tf32", "f16", "bf16", "fp8", "int8", "fp4"};
  return names[static_cast<int>(type)];
}

// What dense peaks follow from, and occupancy is counted from; zeros where it is not known or has
// no meaning.
struct ChipSpec {
  std::string architecture;  // "sm_90"
  double boost_hz = 0.0;     // at which the tensor peaks are stated
  int64_t n_sm = 0;
  int64_t threads_per_sm = 0;    // resident at most
  int64_t registers_per_sm = 0;  // of 32 bits
  int64_t shared_bytes_per_sm = 0;
  int64_t l2_bytes = 0;
  bool operator==(const ChipSpec&) const = default;
};

struct DeviceSpec {
  std::string name;                       // of the preset: "h100-sxm"
  std::string description;                // "NVIDIA H100 SXM5 80GB"
  std::vector<std::string> gpu_names;     // what the driver calls it: "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;               // usable capacity
  double memory_bytes_per_s = 0.0;        // peak read bandwidth
  std::map<MathType, double> peak_flops;  // dense FLOP/s; a type that the device lacks is absent
  ChipSpec chip;
  DeviceTiming timing;

  double ridge_flop_per_byte(MathType type) const {
    return peak_flops.at(type) / memory_bytes_per_s;
  }
};

}  // namespace testbed
