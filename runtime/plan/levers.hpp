// The three levers on the memory wall of decode: fewer bytes per weight, more tokens per pass over
// the weights, more bandwidth. What each gives at the roof, links not counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/step_roofline.hpp"

namespace testbed::plan {

struct Lever {
  std::string lever;   // "bytes per weight", "tokens per pass", "bandwidth"; "" for the step as is
  std::string change;  // "int4", "batch x 8", ...
  double step_seconds = 0.0;
  double tokens_per_s = 0.0;
  double gain = 1.0;  // in tokens/s, against the step as it is
};

// The first is the step as it is. A change that the model or device does not allow is left out.
std::vector<Lever> levers_of(const ModelConfig& model,
                             const Split& split,
                             const StepShape& decode,
                             const StepFormats& formats,
                             const DeviceSpec& device);

}  // namespace testbed::plan
