// What a person reads of a GPU's own measurements.
#pragma once

#include <string>

#include "kernels/probes/device_curves.hpp"

namespace testbed {

// At most 100 columns. The library's products are in the file only.
std::string device_curves_table(const DeviceCurves& curves);

}  // namespace testbed
