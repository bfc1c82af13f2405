// Loops over memory, 16 bytes per thread at a time. Bound: the memory that the buffers are in.
#include <algorithm>

#include "kernels/probes/cuda/bandwidth.hpp"
#include "kernels/probes/cuda/probe_code.cuh"
#include "kernels/probes/cuda/probe_support.hpp"

namespace testbed::cuda {
namespace {

// 2 blocks of 512 threads on an SM, 4 accesses of 16 bytes each: 64 KiB on their way, where
// 3.35 TB/s / 132 SMs at a latency of 0.7 us need 18 KiB (Little's law).
constexpr int n_threads = 512;
constexpr int blocks_per_sm = 2;
constexpr int n_unrolled = 4;

__device__ inline uint4 pattern(int64_t i) {
  const auto word = static_cast<uint64_t>(4 * i);
  return {
      pattern_word(word), pattern_word(word + 1), pattern_word(word + 2), pattern_word(word + 3)};
}

// body(i, count) for the count elements i, i + step, ...; the count is an integral constant.
template <typename Body>
__device__ inline void for_elements(int64_t n, int64_t step, const Body& body) {
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (n_unrolled - 1) * step < n; i += n_unrolled * step) {
    body(i, std::integral_constant<int, n_unrolled>{});
  }
  for (; i < n; i += step) body(i, std::integral_constant<int, 1>{});
}

// Past L1, which would hold a part of what L2 is to be measured with.
__global__ void __launch_bounds__(n_threads, blocks_per_sm)
    read_words(const uint4* from, int64_t n, int n_passes, uint32_t* sum) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t total = 0;
  for (int pass = 0; pass < n_passes; ++pass) {
    for_elements(n, step, [&](int64_t i, auto count) {
      uint4 v[count];
      for (int u = 0; u < count; ++u) v[u] = __ldcg(from + i + u * step);
      for (int u = 0; u < count; ++u) total += sum_of(v[u]);
    });
  }
  add_up(total, sum);
}

__global__ void __launch_bounds__(n_threads, blocks_per_sm)
    write_words(uint4* to, int64_t n, int n_passes) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int pass = 0; pass < n_passes; ++pass) {
    for_elements(n, step, [&](int64_t i, auto count) {
      for (int u = 0; u < count; ++u) __stcg(to + i + u * step, pattern(i + u * step));
    });
  }
}

__global__ void __launch_bounds__(n_threads, blocks_per_sm)
    copy_words(const uint4* from, uint4* to, int64_t n, int n_passes) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int pass = 0; pass < n_passes; ++pass) {
    for_elements(n, step, [&](int64_t i, auto count) {
      uint4 v[count];
      for (int u = 0; u < count; ++u) v[u] = __ldcg(from + i + u * step);
      for (int u = 0; u < count; ++u) __stcg(to + i + u * step, v[u]);
    });
  }
}

// Every round, each of a block's 1024 threads reads another of 1024 pieces of 16 bytes. clocks: of
// block 0.
constexpr int shared_threads = 1024;
__global__ void __launch_bounds__(shared_threads)
    read_shared(int n_rounds, uint32_t* sum, int64_t* clocks) {
  __shared__ uint4 words[shared_threads];
  words[threadIdx.x] = pattern(threadIdx.x);
  __syncthreads();
  const int64_t begin = clock64();
  uint32_t total = 0;
  for (int round = 0; round < n_rounds; ++round) {
    total += sum_of(words[(threadIdx.x + static_cast<unsigned>(round)) % shared_threads]);
  }
  add_up(total, sum);
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) *clocks = clock64() - begin;
}

LaunchShape shape_of(int64_t n) {
  const int64_t most = int64_t{blocks_per_sm} * n_sms();
  return {dim3(static_cast<unsigned>(std::clamp<int64_t>(divide_up(n, n_threads), 1, most))),
          dim3(n_threads)};
}
int64_t n_pieces(TensorView x) {
  CHECK(x.n_bytes() > 0 && x.n_bytes() % 16 == 0);
  CHECK(reinterpret_cast<uintptr_t>(x.data()) % 16 == 0);
  return x.n_bytes() / 16;
}

}  // namespace

void read_memory(Queue& queue, TensorView from, int n_passes, uint32_t* sum) {
  const int64_t n = n_pieces(from);
  launch(queue, read_words, shape_of(n), static_cast<const uint4*>(from.data()), n, n_passes, sum);
}

void write_memory(Queue& queue, TensorView to, int n_passes) {
  const int64_t n = n_pieces(to);
  launch(queue, write_words, shape_of(n), static_cast<uint4*>(to.data()), n, n_passes);
}

void copy_memory(Queue& queue, TensorView from, TensorView to, int n_passes) {
  const int64_t n = n_pieces(from);
  CHECK(n == n_pieces(to));
  launch(queue,
         copy_words,
         shape_of(n),
         static_cast<const uint4*>(from.data()),
         static_cast<uint4*>(to.data()),
         n,
         n_passes);
}

int64_t read_buffer_bytes() { return 4 * l2_bytes(); }

double read_bandwidth_sample(Queue& queue, TensorView buffer) {
  constexpr double duration_s = 10e-3;
  constexpr double most_passes = 1 << 20;
  const Tensor sum = device_tensor(DType::I32, {1});
  const TensorView whole(buffer.data(), DType::I32, {buffer.n_bytes() / 16 * 4});
  Stopwatch stopwatch(queue);
  const auto read = [&](int n_passes) {
    return stopwatch.seconds(
        [&] { read_memory(queue, whole, n_passes, static_cast<uint32_t*>(sum.data())); });
  };
  const double once_s = read(1);
  const auto n_passes = static_cast<int>(std::clamp(duration_s / once_s, 1.0, most_passes));
  return static_cast<double>(whole.n_bytes()) * n_passes / read(n_passes);
}

MemoryLevel measure_level(Queue& queue, std::string name, int64_t n_bytes, const Effort& effort) {
  CHECK(n_bytes >= 32);
  const int64_t half_words = n_bytes / 32 * 4;
  const Tensor buffer = device_tensor(DType::I32, {2, half_words});
  const Tensor sum = device_tensor(DType::I32, {1});
  const TensorView first = buffer.view().rows(0, 1);
  const TensorView second = buffer.view().rows(1, 1);
  auto* const sum_words = static_cast<uint32_t*>(sum.data());
  clear(queue, buffer);
  Stopwatch stopwatch(queue);

  // Passes of one launch: its start and its last blocks do not show.
  write_memory(queue, buffer, 1);
  const double once_s = stopwatch.seconds([&] { write_memory(queue, buffer, 1); });
  const auto n_passes = static_cast<int>(std::clamp(effort.least_s / once_s, 1.0, 1e4));
  const auto rate = [&](int64_t bytes, const std::function<void()>& work) {
    return static_cast<double>(bytes) * n_passes / stopwatch.median_seconds(work, effort);
  };
  MemoryLevel level{.name = std::move(name), .n_bytes = buffer.n_bytes()};
  level.write_bytes_per_s = rate(buffer.n_bytes(), [&] { write_memory(queue, buffer, n_passes); });
  level.read_bytes_per_s =
      rate(buffer.n_bytes(), [&] { read_memory(queue, buffer, n_passes, sum_words); });
  level.copy_bytes_per_s =
      rate(buffer.n_bytes(), [&] { copy_memory(queue, first, second, n_passes); });
  // Both halves are now the pattern's first.
  clear(queue, sum);
  read_memory(queue, buffer, 1, sum_words);
  expect_sum(queue, sum, 2 * pattern_sum(static_cast<uint64_t>(half_words)), "copy");
  return level;
}

SharedMemoryRate measure_shared(Queue& queue, int n_blocks, int n_rounds, const Effort& effort) {
  const Tensor sum = device_tensor(DType::I32, {1});
  const Tensor clocks = device_tensor(DType::I32, {2});
  auto* const sum_words = static_cast<uint32_t*>(sum.data());
  const auto read = [&] {
    launch(queue,
           read_shared,
           {dim3(static_cast<unsigned>(n_blocks)), dim3(shared_threads)},
           n_rounds,
           sum_words,
           static_cast<int64_t*>(clocks.data()));
  };
  const double seconds = Stopwatch(queue).median_seconds(read, effort);
  clear(queue, sum);
  read();
  const uint64_t of_block = pattern_sum(4 * shared_threads);
  expect_sum(queue,
             sum,
             of_block * static_cast<uint64_t>(n_rounds) * static_cast<uint64_t>(n_blocks),
             "shared memory");
  int64_t n_clocks = 0;
  check(cudaMemcpy(&n_clocks, clocks.data(), sizeof n_clocks, cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  const double block_bytes = 16.0 * shared_threads * n_rounds;
  return {
      .bytes_per_s = block_bytes * n_blocks / seconds,
      .bytes_per_sm_and_clock = block_bytes / static_cast<double>(std::max<int64_t>(1, n_clocks))};
}

}  // namespace testbed::cuda
