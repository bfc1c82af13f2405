// Times of the device by its own events: what a probe's kernels take, without the host's calls.
#pragma once

#include <functional>

#include "kernels/cuda/queue.hpp"

namespace testbed::cuda {

// How much to measure. A timing is of as many calls as take least_s; tests take less of everything.
struct Effort {
  double least_s = 2e-3;  // 4000 times an event's resolution
  int n_timings = 7;
  int most_calls = 4096;
};

class Stopwatch {
 public:
  explicit Stopwatch(Queue& queue) : queue_(queue) {}
  // Of what work() enqueues on the compute stream, once. At least an event's resolution.
  double seconds(const std::function<void()>& work);
  // Of one call of it: warmed up, the median of the timings.
  double median_seconds(const std::function<void()>& work, const Effort& effort);

 private:
  Queue& queue_;
  Event begin_{Event::Kind::timing};
  Event end_{Event::Kind::timing};
};

// The middle of an odd number of values, the upper one of an even number.
double middle(std::vector<double> values);

}  // namespace testbed::cuda
