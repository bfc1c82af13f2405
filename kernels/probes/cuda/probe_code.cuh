// What the probes' kernels share: results that nothing can be optimised away from.
#pragma once

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/probes/cuda/pattern.hpp"

namespace testbed::cuda {

__device__ inline uint32_t sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

// *sum += the x of all threads, modulo 2^32: the same in any order.
__device__ inline void add_up(uint32_t x, uint32_t* sum) {
  for (int lanes = warp_size / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(all_lanes, x, lanes);
  if (threadIdx.x % warp_size == 0) atomicAdd(sum, x);
}

inline dim3 grid_of(int64_t n_blocks) { return dim3(static_cast<unsigned>(n_blocks)); }

}  // namespace testbed::cuda
