// Which devices are worse than they should be, or than the others. Logic only.
#pragma once

#include <optional>
#include <vector>

#include "runtime/accept/case.hpp"

namespace testbed {

struct SlowDevice {
  size_t rank = 0;
  bool misses_gate = false;
  std::optional<double> cohort;  // the median of all, if it stands out
};

// figures: of one kind, judged, one a rank, more is better. Outliers (gates.hpp) are so by the
// median of their samples and by the best: a disturbance that comes and goes is no fault of a
// device.
std::vector<SlowDevice> slow_devices(const std::vector<Figure>& figures, double tolerance);

}  // namespace testbed
