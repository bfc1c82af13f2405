// What every kernel includes: the language of the device (or its emulation), and what kernels
// share: 16-byte accesses of rows of either compute dtype, sums and maxima over warps and blocks.
// Memory moves in sectors of 32 bytes: neighbouring lanes read neighbouring 16-byte pieces.
#pragma once

#include <cstdint>

#include "cuda_arch/device.cuh"
#include "cuda_arch/ptx.cuh"
#include "kernels/base/dtype.hpp"

namespace testbed::cuda {

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffU;

// Elements of a compute dtype in one 16-byte access.
template <typename T>
constexpr int per_access = 16 / static_cast<int>(sizeof(T));

struct alignas(16) Words {
  uint32_t w[4];
};

// 16 bytes as f32 values. p is 16-byte aligned.
__device__ inline void load_row_part(const float* p, float (&x)[4]) {
  const Words words = *reinterpret_cast<const Words*>(p);
  for (int i = 0; i < 4; ++i) x[i] = as_float(words.w[i]);
}
__device__ inline void load_row_part(const bf16* p, float (&x)[8]) {
  const Words words = *reinterpret_cast<const Words*>(p);
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = as_float(words.w[i] << 16);
    x[2 * i + 1] = as_float(words.w[i] & 0xffff0000U);
  }
}
__device__ inline void store_row_part(float* p, const float (&x)[4]) {
  Words words;
  for (int i = 0; i < 4; ++i) words.w[i] = as_bits(x[i]);
  *reinterpret_cast<Words*>(p) = words;
}
__device__ inline void store_row_part(bf16* p, const float (&x)[8]) {
  Words words;
  for (int i = 0; i < 4; ++i) words.w[i] = pack_bf16x2(x[2 * i], x[2 * i + 1]);
  *reinterpret_cast<Words*>(p) = words;
}

// One element.
__device__ inline float load_one(const float* p) { return *p; }
__device__ inline float load_one(const bf16* p) {
  return as_float(static_cast<uint32_t>(p->bits) << 16);
}
__device__ inline void store_one(float* p, float x) { *p = x; }
__device__ inline void store_one(bf16* p, float x) {
  p->bits = static_cast<uint16_t>(pack_bf16x2(x, 0.0F));
}

__device__ inline float warp_sum(float x) { return sum_of_lanes<warp_size>(x); }
__device__ inline float warp_max(float x) { return max_of_lanes<warp_size>(x); }
// Over the block's threads (a multiple of 32, at most 1024), on every thread. scratch: 32 floats of
// shared memory, which may be used again after a __syncthreads().
__device__ inline float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % warp_size == 0) scratch[threadIdx.x / warp_size] = x;
  __syncthreads();
  const unsigned n_warps = blockDim.x / warp_size;
  x = threadIdx.x % warp_size < n_warps ? scratch[threadIdx.x % warp_size] : 0.0F;
  return warp_sum(x);
}

}  // namespace testbed::cuda
