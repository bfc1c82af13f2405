// Pattern search (Hooke & Jeeves 1961): least value of a function of few positive parameters, by
// steps that double while they help and halve when they do not. Needs no derivative: times of ops
// are maxima of terms, with kinks.
#pragma once

#include <functional>
#include <vector>

namespace testbed {

struct PositiveRange {
  double start = 1.0;
  double least = 0.0;  // > 0
  double most = 0.0;
};

// Steps are factors, so parameters may be of any scale. The same result in every run.
std::vector<double> least_value(const std::function<double(const std::vector<double>&)>& function,
                                const std::vector<PositiveRange>& ranges);

}  // namespace testbed
