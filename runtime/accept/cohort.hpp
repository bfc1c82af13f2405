// Who stands out of a cohort beyond what the samples of a noisy machine say by chance. Logic only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace testbed {

struct Sampled {
  double median = 0.0;
  double best = 0.0;
  double worst = 0.0;
};
Sampled sampled(std::span<const double> samples, bool more_is_better);

// The outliers (gates.hpp) by the median of their samples whose best sample is worse, too, than the
// worst of the others are (their median): a disturbance that comes and goes is no fault.
std::vector<size_t> clear_outliers(std::span<const Sampled> cohort,
                                   double tolerance,
                                   bool more_is_better);

}  // namespace testbed
