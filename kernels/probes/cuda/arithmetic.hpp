// Rates of the CUDA cores' multiply-adds, and what divergence takes of them.
#pragma once

#include "kernels/probes/cuda/stopwatch.hpp"
#include "kernels/probes/device_curves.hpp"

namespace testbed::cuda {

// n_blocks blocks of 256 threads, each thread n_rounds of 8 multiply-adds that do not wait for one
// another.
struct ArithmeticSize {
  int n_blocks = 0;
  int n_rounds = 0;
};
// FLOP of one launch, in scalar multiply-adds.
int64_t arithmetic_flops(const ArithmeticSize& size);

// f64, f32 and f16 (two in a register). Throws DeviceError where a result is not what it must be.
std::vector<MathRate> measure_cuda_cores(Queue& queue,
                                         const ArithmeticSize& size,
                                         const Effort& effort);

// The f32 loop by lanes of which each n_ways-th takes the same branch.
std::vector<DivergenceRate> measure_divergence(Queue& queue,
                                               const ArithmeticSize& size,
                                               const Effort& effort);

}  // namespace testbed::cuda
