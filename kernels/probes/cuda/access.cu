// Reads of global memory that differ only in layout or in occupancy. Bound: memory.
#include <algorithm>

#include "kernels/probes/cuda/access.hpp"
#include "kernels/probes/cuda/bandwidth.hpp"
#include "kernels/probes/cuda/probe_code.cuh"
#include "kernels/probes/cuda/probe_support.hpp"

namespace testbed::cuda {
namespace {

constexpr int n_threads = 256;

// Useful bytes: 4 n_loads; moved: 32 x sectors_per_warp(stride) for 32 loads. Four loads are on
// their way per thread.
__global__ void __launch_bounds__(n_threads)
    read_every(const uint32_t* words, int64_t n_loads, int64_t stride, uint32_t* sum) {
  constexpr int n_unrolled = 4;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t total = 0;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (n_unrolled - 1) * step < n_loads; i += n_unrolled * step) {
    uint32_t v[n_unrolled];
    for (int u = 0; u < n_unrolled; ++u) v[u] = __ldcg(words + (i + u * step) * stride);
    for (int u = 0; u < n_unrolled; ++u) total += v[u];
  }
  for (; i < n_loads; i += step) total += __ldcg(words + i * stride);
  add_up(total, sum);
}

// One access of 16 bytes per thread on its way: the threads hide the latency, or nothing does.
__global__ void __launch_bounds__(n_threads)
    read_one_at_a_time(const uint4* from, int64_t n, uint32_t* sum) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t total = 0;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  while (i < n) {
    const uint4 v = __ldcg(from + i);
    total += sum_of(v);
    // The next address waits for this read: no four words of the pattern are all 0.
    i += step + ((v.x | v.y | v.z | v.w) == 0 ? 1 : 0);
  }
  add_up(total, sum);
}

}  // namespace

int64_t read_strided(Queue& queue, TensorView words, int64_t stride, uint32_t* sum) {
  const int64_t n_loads = words.n_bytes() / 4 / stride;
  CHECK(n_loads > 0);
  constexpr int64_t blocks_per_sm = 8;
  const int64_t n_blocks = std::min(divide_up(n_loads, n_threads), blocks_per_sm * n_sms());
  launch(queue,
         read_every,
         {grid_of(n_blocks), dim3(n_threads)},
         static_cast<const uint32_t*>(words.data()),
         n_loads,
         stride,
         sum);
  return n_loads;
}

std::vector<StrideRate> measure_strides(Queue& queue, int64_t n_bytes, const Effort& effort) {
  const Tensor words = device_tensor(DType::I32, {n_bytes / 16 * 4});
  const Tensor sum = device_tensor(DType::I32, {1});
  auto* const sum_word = static_cast<uint32_t*>(sum.data());
  write_memory(queue, words, 1);
  Stopwatch stopwatch(queue);
  std::vector<StrideRate> rates;
  for (const int64_t stride : {1, 2, 4, 8, 16, 32}) {
    clear(queue, sum);
    const int64_t n_loads = read_strided(queue, words, stride, sum_word);
    expect_sum(queue,
               sum,
               pattern_sum(static_cast<uint64_t>(n_loads), static_cast<uint64_t>(stride)),
               "strides");
    const double seconds =
        stopwatch.median_seconds([&] { read_strided(queue, words, stride, sum_word); }, effort);
    const double loads_per_s = static_cast<double>(n_loads) / seconds;
    const auto sectors = static_cast<double>(sectors_per_warp(stride));
    rates.push_back({.stride = stride,
                     .sectors_per_warp = sectors_per_warp(stride),
                     .useful_bytes_per_s = 4.0 * loads_per_s,
                     .sector_bytes_per_s = 32.0 * sectors / warp_size * loads_per_s});
  }
  return rates;
}

std::vector<OccupancyRate> measure_occupancy(Queue& queue,
                                             const OccupancySize& size,
                                             const Effort& effort) {
  constexpr int64_t reserved = 1024;  // of shared memory, per block, by the system
  const Tensor buffer = device_tensor(DType::I32, {size.n_bytes / 16 * 4});
  const Tensor sum = device_tensor(DType::I32, {1});
  const int64_t n_words = buffer.n_elements();
  write_memory(queue, buffer, 1);
  Stopwatch stopwatch(queue);
  std::vector<OccupancyRate> rates;
  const auto most_blocks = static_cast<int>(size.threads_per_sm / n_threads);
  for (int blocks = 1; blocks <= most_blocks; blocks *= 2) {
    const int64_t shared = std::max<int64_t>(0, size.shared_bytes_per_sm / blocks - reserved);
    const auto read = [&] {
      launch(queue,
             read_one_at_a_time,
             {grid_of(int64_t{blocks} * size.n_sms),
              dim3(n_threads),
              static_cast<size_t>(shared / 16 * 16)},
             static_cast<const uint4*>(buffer.data()),
             n_words / 4,
             static_cast<uint32_t*>(sum.data()));
    };
    clear(queue, sum);
    read();
    expect_sum(queue, sum, pattern_sum(static_cast<uint64_t>(n_words)), "occupancy");
    const double seconds = stopwatch.median_seconds(read, effort);
    rates.push_back({.blocks_per_sm = blocks,
                     .threads_per_sm = int64_t{blocks} * n_threads,
                     .read_bytes_per_s = static_cast<double>(buffer.n_bytes()) / seconds});
  }
  return rates;
}

}  // namespace testbed::cuda
