#include "runtime/accept/device_judgement.hpp"

#include <algorithm>

#include "runtime/accept/cohort.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {

std::vector<SlowDevice> slow_devices(const std::vector<Figure>& figures, double tolerance) {
  std::vector<Sampled> cohort;
  std::vector<double> medians;
  cohort.reserve(figures.size());
  medians.reserve(figures.size());
  for (const Figure& figure : figures) {
    cohort.push_back(sampled(figure.samples, true));
    medians.push_back(cohort.back().median);
  }
  const std::vector<size_t> outlying = clear_outliers(cohort, tolerance, true);
  std::vector<SlowDevice> slow;
  for (size_t rank = 0; rank < figures.size(); ++rank) {
    const bool is_outlier = std::find(outlying.begin(), outlying.end(), rank) != outlying.end();
    if (figures[rank].passed && !is_outlier) continue;
    SlowDevice& device = slow.emplace_back(
        SlowDevice{.rank = rank, .misses_gate = !figures[rank].passed, .cohort = std::nullopt});
    if (is_outlier) device.cohort = median(medians);
  }
  return slow;
}

}  // namespace testbed
