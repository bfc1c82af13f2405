#include "kernels/probes/cuda/stopwatch.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.hpp"

namespace testbed::cuda {

double Stopwatch::seconds(const std::function<void()>& work) {
  constexpr double resolution_s = 0.5e-6;  // cudaEventElapsedTime's, as it is documented
  queue_.record(begin_.get(), queue_.stream());
  work();
  queue_.record(end_.get(), queue_.stream());
  queue_.wait(end_.get());
  float ms = 0.0F;
  check(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "cudaEventElapsedTime");
  return std::max(resolution_s, static_cast<double>(ms) * 1e-3);
}

double Stopwatch::median_seconds(const std::function<void()>& work, const Effort& effort) {
  work();  // the first loads code and fills caches
  const double once_s = seconds(work);
  const double wanted = std::ceil(effort.least_s / once_s);
  const int n_calls = static_cast<int>(std::clamp(wanted, 1.0, double(effort.most_calls)));
  std::vector<double> timings;
  timings.reserve(static_cast<size_t>(effort.n_timings));
  for (int i = 0; i < effort.n_timings; ++i) {
    const double all_s = seconds([&] {
      for (int call = 0; call < n_calls; ++call) work();
    });
    timings.push_back(all_s / n_calls);
  }
  return middle(std::move(timings));
}

double middle(std::vector<double> values) {
  CHECK(!values.empty());
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace testbed::cuda
