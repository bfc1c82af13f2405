// What one kernel instead of two saves.
#pragma once

#include "kernels/probes/cuda/stopwatch.hpp"
#include "kernels/probes/device_curves.hpp"

namespace testbed::cuda {

// residual += x, then RMSNorm: five passes over [n_rows, width] of bf16 in two kernels (add reads
// two and writes one; norm reads one and writes one), four in one.
// Throws DeviceError if the two ways do not give the same bits.
FusionSaving measure_fusion(Queue& queue, int64_t n_rows, int64_t width, const Effort& effort);

}  // namespace testbed::cuda
