#include "runtime/accept/cohort.hpp"

#include <algorithm>

#include "runtime/accept/gates.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {

Sampled sampled(std::span<const double> samples, bool more_is_better) {
  const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
  return {.median = median(samples),
          .best = more_is_better ? *most : *least,
          .worst = more_is_better ? *least : *most};
}

std::vector<size_t> clear_outliers(std::span<const Sampled> cohort,
                                   double tolerance,
                                   bool more_is_better) {
  if (cohort.empty()) return {};
  std::vector<double> medians;
  std::vector<double> worsts;
  medians.reserve(cohort.size());
  worsts.reserve(cohort.size());
  for (const Sampled& of_one : cohort) {
    medians.push_back(of_one.median);
    worsts.push_back(of_one.worst);
  }
  const double usual_worst = median(worsts);
  std::vector<size_t> found = outliers(medians, tolerance, more_is_better);
  std::erase_if(found, [&](size_t i) {
    const double best = cohort[i].best;
    return more_is_better ? best >= usual_worst : best <= usual_worst;
  });
  return found;
}

}  // namespace testbed
