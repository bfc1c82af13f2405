// The device language itself, where the emulation has its own version (tests/cuda_emulation).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace testbed::cuda {

__device__ inline float as_float(uint32_t bits) { return __uint_as_float(bits); }
__device__ inline uint32_t as_bits(float x) { return __float_as_uint(x); }

// Two bf16 in a register, the first in the low half; rounded to nearest even.
__device__ inline uint32_t pack_bf16x2(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}

// Over each n_lanes neighbouring lanes of the warp, a power of two, on all of them, in the order of
// a butterfly from the farthest lane to the nearest. All lanes take part.
template <int n_lanes>
__device__ inline float sum_of_lanes(float x) {
  for (int mask = n_lanes / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffU, x, mask);
  return x;
}
template <int n_lanes>
__device__ inline float max_of_lanes(float x) {
  for (int mask = n_lanes / 2; mask > 0; mask /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, mask));
  }
  return x;
}

// The dynamic shared memory of the launch, 16-byte aligned.
template <typename T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char testbed_dynamic_shared[];
  return reinterpret_cast<T*>(testbed_dynamic_shared);
}

}  // namespace testbed::cuda
