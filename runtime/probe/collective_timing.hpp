// Times what several ranks do together.
#pragma once

#include <functional>
#include <vector>

#include "kernels/device.hpp"
#include "parallel/comm/control.hpp"

namespace testbed {

// [rank] the values that each rank came with, on every rank. All ranks of the job call it together.
std::vector<std::vector<double>> values_of_all(ControlChannel& control,
                                               const std::vector<double>& mine);

// How many of `each_s` fit into total_s: at least one, at most so many.
int64_t count_within(double total_s, double each_s, int64_t most);

class CollectiveTimer {
 public:
  // Both must outlive it; control: all ranks of the job.
  CollectiveTimer(Device& device, ControlChannel& control) : device_(device), control_(control) {}

  // Of one call, in us: the median over timings of the slowest rank's time, on every rank. All
  // ranks of the job call it together; those without a call wait.
  double median_us(const std::function<void()>& call) const;

  // A barrier of the job, then n calls: this rank's seconds per call. 0 without a call.
  double seconds_per_call(const std::function<void()>& call, int64_t n) const;

 private:
  std::vector<double> slowest(const std::vector<double>& mine) const;

  Device& device_;
  ControlChannel& control_;
};

}  // namespace testbed
