#include "runtime/probe/collective_timing.hpp"

#include <algorithm>

#include "kernels/base/byte_stream.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/probe/timing.hpp"

namespace testbed {
namespace {

// One timing lasts long enough that the clock and the barrier do not show.
constexpr double timing_s = 2e-3;
constexpr int64_t most_calls = 64;
// All timings of one point: many of the short ones, and one call of what takes this long.
constexpr double point_s = 0.1;
constexpr int64_t most_timings = 9;

}  // namespace

std::vector<std::vector<double>> values_of_all(ControlChannel& control,
                                               const std::vector<double>& mine) {
  ByteWriter out;
  out.put(mine);
  std::vector<std::vector<double>> all;
  all.reserve(static_cast<size_t>(control.size()));
  for (const Bytes& bytes : control.all_gather(out.take()))
    ByteReader(bytes).get(all.emplace_back());
  return all;
}

int64_t count_within(double total_s, double each_s, int64_t most) {
  return std::clamp(static_cast<int64_t>(total_s / std::max(each_s, 1e-9)), int64_t{1}, most);
}

double CollectiveTimer::seconds_per_call(const std::function<void()>& call, int64_t n) const {
  control_.barrier();
  if (!call) return 0.0;
  const double seconds = device_seconds(device_, 0, [&] {
    for (int64_t i = 0; i < n; ++i) call();
  });
  return seconds / static_cast<double>(n);
}

// Element by element the slowest rank's, on every rank.
std::vector<double> CollectiveTimer::slowest(const std::vector<double>& mine) const {
  std::vector<double> most(mine.size(), 0.0);
  for (const std::vector<double>& of_rank : values_of_all(control_, mine)) {
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], of_rank[i]);
  }
  return most;
}

double CollectiveTimer::median_us(const std::function<void()>& call) const {
  const double first_s = slowest({seconds_per_call(call, 1)}).front();
  if (first_s > point_s) return first_s * 1e6;
  const double second_s = slowest({seconds_per_call(call, 1)}).front();
  const int64_t n_calls = count_within(timing_s, second_s, most_calls);
  const int64_t n_timings =
      count_within(point_s, second_s * static_cast<double>(n_calls), most_timings);
  std::vector<double> mine;
  mine.reserve(static_cast<size_t>(n_timings));
  for (int64_t i = 0; i < n_timings; ++i) mine.push_back(seconds_per_call(call, n_calls));
  return median(slowest(mine)) * 1e6;
}

}  // namespace testbed
