// How reads are laid out: strides between neighbouring threads, and how many threads an SM holds.
#pragma once

#include "kernels/probes/cuda/stopwatch.hpp"
#include "kernels/probes/device_curves.hpp"

namespace testbed::cuda {

// Sectors of 32 bytes that a warp touches with 32 loads of 4 bytes, `stride` elements apart, from
// an aligned address: 4 x stride, at most one per load. So a stride of 8 moves 8 times the bytes of
// a stride of 1, and more does not move more.
constexpr int64_t sectors_per_warp(int64_t stride) { return stride < 8 ? 4 * stride : 32; }

// Reads every stride-th word of the buffer (words as pattern_word) once; *sum += what is read.
// Returns the number of loads.
int64_t read_strided(Queue& queue, TensorView words, int64_t stride, uint32_t* sum);

// Strides 1, 2, 4, ... 32 over a buffer of n_bytes.
std::vector<StrideRate> measure_strides(Queue& queue, int64_t n_bytes, const Effort& effort);

// 1, 2, 4, ... blocks of 256 threads on each SM, kept apart by their shared memory.
struct OccupancySize {
  int n_sms = 0;
  int64_t threads_per_sm = 0;
  int64_t shared_bytes_per_sm = 0;
  int64_t n_bytes = 0;  // of the buffer
};
std::vector<OccupancyRate> measure_occupancy(Queue& queue,
                                             const OccupancySize& size,
                                             const Effort& effort);

}  // namespace testbed::cuda
