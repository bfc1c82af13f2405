// What a GPU's counters say of a stretch of time, a pass for example: energy, bytes on its links,
// what held its clocks down, faults. Costs some milliseconds at either end, nothing between. A
// counter that so short or long a time does not resolve is std::nullopt.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "kernels/base/device_counters.hpp"
#include "kernels/cuda/nvml.hpp"

namespace testbed {

class NvmlWindow {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit NvmlWindow(NvmlDevice device);

  void begin(Time now = std::chrono::steady_clock::now());
  // Between passes, the device busy or just so: what changes from moment to moment.
  void look();
  DeviceCounters end(Time now = std::chrono::steady_clock::now());

 private:
  void note(const NvmlSample& sample);

  NvmlDevice device_;
  NvmlXidWatch xids_;
  Time begin_;
  NvmlSample first_;
  DeviceCounters seen_;                     // extremes over the looks
  std::optional<double> pcie_bytes_per_s_;  // at most, one direction
  std::optional<uint64_t> reasons_;         // union over the looks
};

}  // namespace testbed
