// Seconds of work on a device by its own clock: on one that works behind the host's back, what its
// ops take, and not what the host takes to ask for them.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/device.hpp"

namespace testbed {

// Of a section (Device::section) in which nothing waits for the device. key 0: never captured.
double device_seconds(Device& device, uint64_t key, const std::function<void()>& work);

}  // namespace testbed
