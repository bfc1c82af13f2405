#include "parallel/comm/peer_sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/base/clock.hpp"
#include "parallel/comm/gather_values.hpp"

namespace testbed {
namespace {

// [one-shot, two-shot, NCCL]
std::array<double, 3> of(const AllReduceTimes& t) {
  return {t.one_shot_us, t.two_shot_us, t.nccl_us};
}

// Of sizes[0, n_one_shot) by one-shot, those up to n_two_shot by two-shot, the rest by NCCL.
double cost(std::span<const AllReduceTimes> times, size_t n_one_shot, size_t n_two_shot) {
  double sum = 0.0;
  for (size_t i = 0; i < times.size(); ++i) {
    const std::array<double, 3> us = of(times[i]);
    const double taken = us[i < n_one_shot ? 0 : i < n_two_shot ? 1 : 2];
    sum += taken / *std::min_element(us.begin(), us.end());
  }
  return sum;
}

std::string bytes_text(int64_t n_bytes) {
  constexpr int64_t kib = 1024;
  return n_bytes % kib == 0 ? fmt::format("{} KiB", n_bytes / kib) : fmt::format("{} B", n_bytes);
}

double elapsed_us(const cuda::Event& begin, const cuda::Event& end) {
  float ms = 0.0F;
  cuda::check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return 1e3 * static_cast<double>(ms);
}

// Of one call, by the device: the median of this rank's batches.
double measure_us(cuda::Queue& queue,
                  Communicator& host,
                  const std::function<void()>& call,
                  uint64_t key,
                  const PeerTuning& tuning) {
  const auto batch = [&] {
    queue.section(
        key,
        [&] {
          for (int i = 0; i < tuning.calls; ++i) call();
        },
        [&] {
          queue.synchronize();
          host.barrier();
        });
  };
  batch();  // eagerly: libraries set themselves up
  batch();  // captured
  const cuda::Event begin(cuda::Event::Kind::timing);
  const cuda::Event end(cuda::Event::Kind::timing);
  std::vector<double> us(static_cast<size_t>(tuning.repeats));
  for (double& time : us) {
    queue.synchronize();
    host.barrier();
    cuda::check(cudaEventRecord(begin.get(), queue.stream()), "cudaEventRecord");
    batch();
    cuda::check(cudaEventRecord(end.get(), queue.stream()), "cudaEventRecord");
    queue.wait(end.get());
    time = elapsed_us(begin, end) / tuning.calls;
  }
  const auto middle = us.begin() + tuning.repeats / 2;
  std::nth_element(us.begin(), middle, us.end());
  return *middle;
}

}  // namespace

PeerSizes best_sizes(std::span<const AllReduceTimes> times) {
  PeerSizes best;
  double least = std::numeric_limits<double>::infinity();
  const auto up_to = [&](size_t n) { return n == 0 ? 0 : times[n - 1].n_bytes; };
  for (size_t n_one_shot = 0; n_one_shot <= times.size(); ++n_one_shot) {
    for (size_t n_two_shot = n_one_shot; n_two_shot <= times.size(); ++n_two_shot) {
      const double c = cost(times, n_one_shot, n_two_shot);
      if (c >= least) continue;
      least = c;
      best = {.one_shot_bytes = up_to(n_one_shot), .two_shot_bytes = up_to(n_two_shot)};
    }
  }
  return best;
}

std::string sizes_text(const PeerSizes& sizes) {
  std::string text;
  if (sizes.one_shot_bytes > 0) {
    text += fmt::format("one-shot to {}, ", bytes_text(sizes.one_shot_bytes));
  }
  if (sizes.two_shot_bytes > sizes.one_shot_bytes) {
    text += fmt::format("two-shot to {}, ", bytes_text(sizes.two_shot_bytes));
  }
  return text.empty() ? "NCCL" : text + "NCCL above";
}

std::vector<AllReduceTimes> measure_all_reduces(cuda::Queue& queue,
                                                Communicator& host,
                                                const AllReduceCandidates& candidates,
                                                const PeerTuning& tuning) {
  // Zeros stay zeros, however often they are summed.
  const Tensor buffer = cuda::device_tensor(DType::BF16, {tuning.last_bytes / 2});
  cuda::check(
      cudaMemsetAsync(buffer.data(), 0, static_cast<size_t>(buffer.n_bytes()), queue.stream()),
      "cudaMemsetAsync");
  uint64_t key = 0x7065657200000001;  // of no step: those are hashes of shapes
  std::vector<AllReduceTimes> times;
  times.reserve(32);
  const int64_t begin_ns = now_ns();
  double spent_s = 0.0;  // the slowest rank's, so that all stop together
  for (int64_t n_bytes = tuning.first_bytes; n_bytes <= tuning.last_bytes; n_bytes *= 2) {
    const TensorView x(buffer.data(), DType::BF16, {n_bytes / 2});
    if (spent_s > tuning.budget_s) break;
    std::array<double, 4> us{};  // [one-shot, two-shot, NCCL], and spent so far
    size_t i = 0;
    for (const auto* call : {&candidates.one_shot, &candidates.two_shot, &candidates.nccl}) {
      us[i++] = measure_us(
          queue, host, [&] { (*call)(x); }, key++, tuning);
    }
    us[i] = 1e-3 * static_cast<double>(now_ns() - begin_ns);
    for (const std::array<double, 4>& theirs : gather_values(host, us)) {
      for (size_t k = 0; k < us.size(); ++k) us[k] = std::max(us[k], theirs[k]);
    }
    times.push_back({n_bytes, us[0], us[1], us[2]});
    spent_s = 1e-6 * us[3];
  }
  queue.forget_graphs();
  return times;
}

}  // namespace testbed
