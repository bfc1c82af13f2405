// Kernels that do nothing, and one that waits for every load. Bound: latency.
#include <algorithm>
#include <numeric>

#include "kernels/probes/cuda/latency.hpp"
#include "kernels/probes/cuda/probe_code.cuh"
#include "kernels/probes/cuda/probe_support.hpp"

namespace testbed::cuda {
namespace {

constexpr int64_t line_bytes = 128;
constexpr int64_t line_words = line_bytes / 4;

// An argument, as any kernel has one.
__global__ void nothing(int /*unused*/) {}

// From line *at: n_loads hops; then *at is the last line, *clocks the time between.
__global__ void chase(const uint32_t* next, int n_loads, uint32_t* at, int64_t* clocks) {
  uint32_t line = *at;
  const int64_t begin = clock64();
  for (int i = 0; i < n_loads; ++i) line = next[line_words * line];
  *at = line;  // before the clock is read
  __threadfence();
  *clocks = clock64() - begin;
}

void launch_nothing(Queue& queue) { launch(queue, nothing, {dim3(1), dim3(warp_size)}, 0); }

}  // namespace

Overheads measure_overheads(Queue& queue, int n, const Effort& effort) {
  Stopwatch stopwatch(queue);
  const auto per_kernel = [&](const std::function<void()>& work) {
    return stopwatch.median_seconds(work, effort) / n;
  };
  Overheads overheads;
  const auto kernels = [&] {
    for (int i = 0; i < n; ++i) launch_nothing(queue);
  };
  overheads.eager_launch_s = per_kernel(kernels);
  const Event event(Event::Kind::timing);
  const double with_events_s = per_kernel([&] {
    for (int i = 0; i < n; ++i) {
      launch_nothing(queue);
      queue.record(event.get(), queue.stream());
    }
  });
  overheads.event_s = std::max(0.0, with_events_s - overheads.eager_launch_s);
  constexpr uint64_t key = 0x70726f6265;  // "probe": no step's
  overheads.graph_node_s = per_kernel([&] { queue.section(key, kernels); });
  return overheads;
}

std::vector<uint32_t> chase_cycle(int64_t n) {
  CHECK(n > 0 && n <= int64_t{1} << 31);
  std::vector<uint32_t> next(static_cast<size_t>(n));
  std::iota(next.begin(), next.end(), 0U);
  uint64_t state = 1;
  for (size_t i = next.size() - 1; i > 0; --i) {                  // Sattolo: one cycle
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
    std::swap(next[i], next[(state >> 33) % i]);
  }
  return next;
}

LoadLatency measure_latency(Queue& queue, int64_t n_bytes, int n_loads, const Effort& effort) {
  const std::vector<uint32_t> next = chase_cycle(std::max<int64_t>(1, n_bytes / line_bytes));
  const auto n_lines = static_cast<int64_t>(next.size());
  std::vector<uint32_t> words(static_cast<size_t>(n_lines * line_words));
  for (size_t i = 0; i < next.size(); ++i) words[i * line_words] = next[i];
  const Tensor lines = device_tensor(DType::I32, {n_lines * line_words});
  const Tensor at = device_tensor(DType::I32, {1});
  const Tensor clocks = device_tensor(DType::I32, {2});
  copy_to_device(queue, words.data(), lines);
  clear(queue, at);
  const auto follow = [&](int n) {
    launch(queue,
           chase,
           {dim3(1), dim3(1)},
           static_cast<const uint32_t*>(lines.data()),
           n,
           static_cast<uint32_t*>(at.data()),
           static_cast<int64_t*>(clocks.data()));
  };
  follow(static_cast<int>(n_lines));  // once around: the caches hold what they can
  const auto first = values_of<uint32_t>(queue, at).front();
  expect_equal(first, 0, "latency");

  Stopwatch stopwatch(queue);
  std::vector<double> seconds;
  std::vector<double> n_clocks;
  for (int i = 0; i < effort.n_timings; ++i) {
    seconds.push_back(stopwatch.seconds([&] { follow(n_loads); }) / n_loads);
    const auto n = static_cast<double>(values_of<int64_t>(queue, clocks).front());
    n_clocks.push_back(n / n_loads);
  }
  return {.n_bytes = n_lines * line_bytes, .seconds = middle(seconds), .clocks = middle(n_clocks)};
}

}  // namespace testbed::cuda
