// Judges a stated peak: is it the dense figure of its data type, or the sparse one (twice it)?
#pragma once

#include <map>
#include <string>

#include "kernels/base/device_spec.hpp"

namespace testbed {

// Why `peaks[type]` cannot be a dense peak of this chip; "" if it can. The rule:
// - a chip with SMs: dense peak = SMs x FLOP per SM and clock (by architecture and type) x boost
//   clock;
// - no SMs, but types that only tensor cores have (tf32, fp8, fp4): rates double as the type
//   halves: fp8 = int8 = 2 x 16-bit, tf32 = 16-bit / 2, fp4 = 4 x 16-bit.
// Both to 20 %: datasheets state the peaks of CUDA and tensor cores at clocks up to 16 % apart
// (H100 NVL). Structured sparsity doubles every rate, so a sparse figure is always outside of that.
std::string dense_peak_error(const ChipSpec& chip,
                             const std::map<MathType, double>& peaks,
                             MathType type);

// FLOP/s by the architecture's rates per SM and clock; empty if it is not known.
std::map<MathType, double> dense_peaks(const ChipSpec& chip);

}  // namespace testbed
