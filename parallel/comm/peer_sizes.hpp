// Which algorithm a group's all-reduces take by size, from measured times.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/queue.hpp"
#include "parallel/comm/communicator.hpp"

namespace testbed {

// One-shot up to the first payload, two-shot beyond it up to the second, else NCCL's.
struct PeerSizes {
  int64_t one_shot_bytes = 0;
  int64_t two_shot_bytes = 0;
  bool operator==(const PeerSizes&) const = default;
};

struct AllReduceTimes {
  int64_t n_bytes = 0;
  double one_shot_us = 0.0;
  double two_shot_us = 0.0;
  double nccl_us = 0.0;
};

// The changeovers, among the measured sizes (ascending), that cost least: least sum over sizes of
// the time taken against the best at that size, so that one noisy point does not decide.
PeerSizes best_sizes(std::span<const AllReduceTimes> times);
// "one-shot to 64 KiB, two-shot to 512 KiB, NCCL above".
std::string sizes_text(const PeerSizes& sizes);

struct AllReduceCandidates {
  std::function<void(TensorView)> one_shot;
  std::function<void(TensorView)> two_shot;
  std::function<void(TensorView)> nccl;
};
struct PeerTuning {
  int64_t first_bytes = int64_t{1} << 10;  // then twice as much, ...
  int64_t last_bytes = int64_t{4} << 20;   // ... up to this
  int calls = 20;                          // timed together, as one graph
  int repeats = 5;                         // of which the median counts
  double budget_s = 1.0;                   // no further size once this is spent (on a device: ~0.1)
};
// Measured by the device, in graphs as decode steps are, from small to large. The ranks call it
// together; the slowest rank's times, so equal on all. Forgets the queue's graphs.
std::vector<AllReduceTimes> measure_all_reduces(cuda::Queue& queue,
                                                Communicator& host,
                                                const AllReduceCandidates& candidates,
                                                const PeerTuning& tuning);

}  // namespace testbed
