// What it takes to make bf16 of quantised weights: groups of 32 with one bf16 scale, read,
// converted in registers and added up, against bf16 weights that are only read.
#pragma once

#include "kernels/probes/cuda/stopwatch.hpp"
#include "kernels/probes/device_curves.hpp"

namespace testbed::cuda {

constexpr int64_t quant_group = 32;
// Of n_weights (multiples of 32): 4- or 8-bit with their scales, or 16 bits without.
constexpr int64_t quantised_bytes(int bits, int64_t n_weights) {
  return n_weights * bits / 8 + (bits < 16 ? n_weights / quant_group * 2 : 0);
}

// 16, 8 and 4 bits. Verified against the host's conversions. n_weights: a multiple of 32.
std::vector<DequantRate> measure_dequant(Queue& queue, int64_t n_weights, const Effort& effort);

}  // namespace testbed::cuda
