// The device language, emulated: the names of CUDA C++ that kernels use, on fibres. Blocks run one
// after another. Functions of the device that have no place here do not compile.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tests/cuda_emulation/threads.hpp"

#undef __shared__
#undef __constant__
#undef __global__
#undef __device__
#undef __host__
#undef __launch_bounds__
#undef __forceinline__
#undef __noinline__
#undef __align__
#undef __grid_constant__
#define __shared__ EMULATED_SHARED
#define __constant__
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define EMULATED_SHARED static

// Names of glibc's, declared there and not to be found at link time.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __exp10f(x) exp10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
constexpr int warpSize = 32;

inline void __syncthreads(const emulation::Where& where = emulation::Where::current()) {
  emulation::barrier(false, nullptr, where);
}
inline int __syncthreads_count(int predicate,
                               const emulation::Where& where = emulation::Where::current()) {
  return emulation::barrier(predicate != 0, nullptr, where);
}
inline int __syncthreads_or(int predicate,
                            const emulation::Where& where = emulation::Where::current()) {
  return emulation::barrier(predicate != 0, nullptr, where) != 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate,
                             const emulation::Where& where = emulation::Where::current()) {
  int n_threads = 0;
  return emulation::barrier(predicate != 0, &n_threads, where) == n_threads ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffU,
                       const emulation::Where& where = emulation::Where::current()) {
  emulation::leave(emulation::meet(mask, "__syncwarp", nullptr, 0, nullptr, where));
}

// width: lanes are shuffled within groups of so many.
template <typename T>
T __shfl_sync(unsigned mask,
              T value,
              int lane,
              int width = 32,
              const emulation::Where& where = emulation::Where::current()) {
  const auto group = emulation::current_lane() & ~static_cast<unsigned>(width - 1);
  const unsigned from = group + (static_cast<unsigned>(lane) & static_cast<unsigned>(width - 1));
  return emulation::shuffle(mask, "__shfl_sync", value, from, false, where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask,
                  T value,
                  int lane_mask,
                  int width = 32,
                  const emulation::Where& where = emulation::Where::current()) {
  const unsigned lane = emulation::current_lane();
  const unsigned from = lane ^ static_cast<unsigned>(lane_mask);
  const unsigned end = (lane & ~static_cast<unsigned>(width - 1)) + static_cast<unsigned>(width);
  return emulation::shuffle(mask, "__shfl_xor_sync", value, from, from >= end, where);
}
template <typename T>
T __shfl_down_sync(unsigned mask,
                   T value,
                   unsigned delta,
                   int width = 32,
                   const emulation::Where& where = emulation::Where::current()) {
  const unsigned from = emulation::current_lane() + delta;
  const unsigned end = (emulation::current_lane() & ~static_cast<unsigned>(width - 1)) +
                       static_cast<unsigned>(width);
  return emulation::shuffle(mask, "__shfl_down_sync", value, from, from >= end, where);
}
template <typename T>
T __shfl_up_sync(unsigned mask,
                 T value,
                 unsigned delta,
                 int width = 32,
                 const emulation::Where& where = emulation::Where::current()) {
  const unsigned group = emulation::current_lane() & ~static_cast<unsigned>(width - 1);
  const bool own = emulation::current_lane() < group + delta;
  return emulation::shuffle(
      mask, "__shfl_up_sync", value, emulation::current_lane() - delta, own, where);
}
inline unsigned __ballot_sync(unsigned mask,
                              int predicate,
                              const emulation::Where& where = emulation::Where::current()) {
  const unsigned mine = predicate != 0 ? 1U : 0U;
  emulation::Meeting& meeting =
      emulation::meet(mask, "__ballot_sync", &mine, sizeof mine, nullptr, where);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (((mask >> lane) & 1U) != 0) votes |= meeting.get<unsigned>(lane) << lane;
  }
  emulation::leave(meeting);
  return votes;
}
inline int __any_sync(unsigned mask,
                      int predicate,
                      const emulation::Where& where = emulation::Where::current()) {
  return __ballot_sync(mask, predicate, where) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask,
                      int predicate,
                      const emulation::Where& where = emulation::Where::current()) {
  return __ballot_sync(mask, predicate, where) == mask ? 1 : 0;
}

#include "tests/cuda_emulation/include/cuda_arch/intrinsics.cuh"

namespace testbed::cuda {

inline float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t as_bits(float x) { return std::bit_cast<uint32_t>(x); }

// bf16 of x in the low half, rounded to nearest even; any NaN becomes the device's.
inline uint32_t bf16_bits(float x) {
  if (std::isnan(x)) return 0x7fffU;
  const uint32_t bits = as_bits(x);
  return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
}
inline uint32_t pack_bf16x2(float low, float high) {
  return bf16_bits(low) | (bf16_bits(high) << 16);
}

// The steps of a butterfly in one meeting of the lanes: a switch of fibres for each would cost most
// of the tests' time.
template <int n_lanes, float (*combine)(float, float)>
void butterfly(emulation::Meeting& meeting) {
  float x[32];
  for (unsigned lane = 0; lane < 32; ++lane) x[lane] = meeting.get<float>(lane);
  for (unsigned mask = n_lanes / 2; mask > 0; mask /= 2) {
    float before[32];
    std::memcpy(before, x, sizeof x);
    for (unsigned lane = 0; lane < 32; ++lane) x[lane] = combine(before[lane], before[lane ^ mask]);
  }
  for (unsigned lane = 0; lane < 32; ++lane) meeting.put(lane, x[lane]);
}
inline float emulated_sum(float a, float b) { return a + b; }
inline float emulated_max(float a, float b) { return fmaxf(a, b); }
template <int n_lanes>
float sum_of_lanes(float x, const emulation::Where& where = emulation::Where::current()) {
  return emulation::exchange<float>(
      0xffffffffU, "sum_of_lanes", x, &butterfly<n_lanes, &emulated_sum>, where);
}
template <int n_lanes>
float max_of_lanes(float x, const emulation::Where& where = emulation::Where::current()) {
  return emulation::exchange<float>(
      0xffffffffU, "max_of_lanes", x, &butterfly<n_lanes, &emulated_max>, where);
}

template <typename T>
T* dynamic_shared() {
  static_assert(alignof(T) <= 16);
  return static_cast<T*>(emulation::dynamic_shared_memory());
}

}  // namespace testbed::cuda
