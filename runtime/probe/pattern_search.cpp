#include "runtime/probe/pattern_search.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.hpp"

namespace testbed {

std::vector<double> least_value(const std::function<double(const std::vector<double>&)>& function,
                                const std::vector<PositiveRange>& ranges) {
  constexpr double first_step = 1.0;    // of the logarithm
  constexpr double last_step = 1.0e-5;  // the parameters are then known to 0.001 %
  std::vector<double> x;
  x.reserve(ranges.size());
  for (const PositiveRange& range : ranges) {
    CHECK(range.least > 0.0 && range.least <= range.most);
    x.push_back(std::clamp(range.start, range.least, range.most));
  }
  double best = function(x);
  for (double step = first_step; step > last_step;) {
    const double before = best;
    for (size_t i = 0; i < x.size(); ++i) {
      for (const double direction : {step, -step}) {
        std::vector<double> trial = x;
        trial[i] = std::clamp(x[i] * std::exp(direction), ranges[i].least, ranges[i].most);
        const double value = function(trial);
        if (value < best) {
          best = value;
          x = trial;
        }
      }
    }
    if (!(best < before)) step *= 0.5;
  }
  return x;
}

}  // namespace testbed
