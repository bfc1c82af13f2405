// DeviceSpec from and to TOML: configs/devices/*.toml.
#pragma once

#include <string>

#include "kernels/base/device_spec.hpp"

namespace testbed {

// A preset of configs/devices, or a .toml file. Peaks must be dense (dense_peaks.hpp). Throws
// ConfigError with file:line.
DeviceSpec read_device(const std::string& name_or_path);

// The same format; reads back equal, to rounding.
std::string device_toml(const DeviceSpec& device);

}  // namespace testbed
