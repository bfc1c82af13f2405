// A GPU's own measurements as JSON: docs/record.md names the fields.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kernels/probes/device_curves.hpp"

namespace testbed {

nlohmann::ordered_json device_curves_json(const DeviceCurves& curves);

}  // namespace testbed
