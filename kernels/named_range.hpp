// NamedRange: a stretch of the host's work on a device that a profiler shows by name.
#pragma once

#include "kernels/device.hpp"

namespace testbed {

class NamedRange {
 public:
  NamedRange() = default;  // of nothing yet
  // "attention 3"; index < 0: the name alone. Ranges of a thread nest.
  NamedRange(Device& device, std::string_view name, int64_t index) { next(device, name, index); }
  ~NamedRange() { end(); }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

  // Ends, and another begins.
  void next(Device& device, std::string_view name, int64_t index) {
    end();
    device_ = &device;
    device.begin_range(name, index);
  }

 private:
  void end() {
    if (device_ != nullptr) device_->end_range();
  }
  Device* device_ = nullptr;
};

}  // namespace testbed
