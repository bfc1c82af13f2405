#include "runtime/measure/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/check.hpp"

namespace testbed {

namespace {

double percentile_of_sorted(std::span<const double> sorted, double p) {
  const double position = static_cast<double>(sorted.size() - 1) * p / 100.0;
  const auto below = static_cast<size_t>(std::floor(position));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double fraction = position - static_cast<double>(below);
  return sorted[below] + fraction * (sorted[above] - sorted[below]);
}

std::vector<double> sorted_copy(std::span<const double> samples) {
  CHECK(!samples.empty());
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

double percentile(std::span<const double> samples, double p) {
  CHECK(p >= 0.0 && p <= 100.0);
  return percentile_of_sorted(sorted_copy(samples), p);
}

double median(std::span<const double> samples) { return percentile(samples, 50.0); }

double mean(std::span<const double> samples) {
  CHECK(!samples.empty());
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

Summary summarise(std::span<const double> samples) {
  const std::vector<double> sorted = sorted_copy(samples);
  return {.median = percentile_of_sorted(sorted, 50.0),
          .p90 = percentile_of_sorted(sorted, 90.0),
          .p99 = percentile_of_sorted(sorted, 99.0),
          .min = sorted.front(),
          .max = sorted.back(),
          .n = static_cast<int64_t>(sorted.size())};
}

double Repeated::spread() const {
  const double middle = median();
  return middle == 0.0 ? 0.0 : (max() - min()) / middle;
}

}  // namespace testbed
