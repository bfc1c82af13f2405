// What does not depend on bytes: starting kernels, events, and a load's way to memory and back.
#pragma once

#include "kernels/probes/cuda/stopwatch.hpp"
#include "kernels/probes/device_curves.hpp"

namespace testbed::cuda {

// Of runs of n empty kernels of one warp, by the device's events. Captures a graph of the queue's.
Overheads measure_overheads(Queue& queue, int n, const Effort& effort);

// The order in which one thread visits n lines: a cycle through all of them, at random, so that no
// prefetcher knows the next. [i]: the line after i.
std::vector<uint32_t> chase_cycle(int64_t n);

// n_loads loads through n_bytes, a line of 128 bytes each; n_bytes / 128 loads before, uncounted.
LoadLatency measure_latency(Queue& queue, int64_t n_bytes, int n_loads, const Effort& effort);

}  // namespace testbed::cuda
