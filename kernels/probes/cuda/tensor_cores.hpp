// Rates of matrix products by the library, which are the tensor cores' where it uses them.
#pragma once

#include <span>

#include "kernels/cuda/gemm.hpp"
#include "kernels/probes/cuda/stopwatch.hpp"
#include "kernels/probes/device_curves.hpp"

namespace testbed::cuda {

// Square products of n x n x n (a multiple of 16) in every type that the device and the library
// have: f32, tf32, f16, bf16, fp8, int8. FLOP: 2 n^3. Some results are compared with the host's.
std::vector<MathRate> measure_tensor_cores(Queue& queue,
                                           Gemm& gemm,
                                           int64_t n,
                                           const Effort& effort);

struct GemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};
// bf16, over as many matrices as take rotated_bytes, so that none is in a cache when it is read.
std::vector<LibraryGemm> measure_gemm(Queue& queue,
                                      Gemm& gemm,
                                      std::span<const GemmShape> shapes,
                                      int64_t rotated_bytes,
                                      const Effort& effort);

}  // namespace testbed::cuda
