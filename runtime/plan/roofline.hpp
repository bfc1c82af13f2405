// The roofline model (Williams, Waterman and Patterson 2009): attainable FLOP/s at an intensity of
// I FLOP/byte is min(peak, bandwidth * I); the ridge is where the two meet.
#pragma once

#include <cstdint>

#include "kernels/base/device_spec.hpp"
#include "kernels/base/op_cost.hpp"

namespace testbed::plan {

struct Roof {
  double flops_per_s = 0.0;
  double bytes_per_s = 0.0;

  double ridge() const { return flops_per_s / bytes_per_s; }  // FLOP/byte
  double attainable(double flop_per_byte) const;              // FLOP/s
  double seconds(double flops, double bytes) const;           // at the roof
};

// Throws ConfigError if the device has no peak of that math type.
Roof roof_of(const DeviceSpec& device, MathType math);

double intensity(const OpCost& cost);  // FLOP per memory byte

// Tokens M at which [M, H] x [H, H] turns compute-bound, from 2 M H^2 FLOPs and p (H^2 + 2 M H)
// bytes: M = ridge p H / (2 (H - ridge p)); infinite if the ridge is never reached.
double gemm_crossing(double ridge, int64_t h, double bytes_per_element);

// FLOP per byte of weights of a decode pass: 2 * batch * tokens per sequence / bytes per weight.
double decode_intensity(double batch, double tokens_per_pass, double bytes_per_weight);

}  // namespace testbed::plan
