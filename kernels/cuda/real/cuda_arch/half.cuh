// Two f16 in a register, for the probe of their rate.
#pragma once

#include <cuda_fp16.h>

namespace testbed::cuda {

using Half2 = __half2;

__device__ inline Half2 half2_of(float x) { return __float2half2_rn(x); }
__device__ inline Half2 fma_half2(Half2 a, Half2 b, Half2 c) { return __hfma2(a, b, c); }
__device__ inline float low_float(Half2 x) { return __low2float(x); }
__device__ inline float high_float(Half2 x) { return __high2float(x); }

}  // namespace testbed::cuda
