#include "runtime/plan/growth.hpp"

#include <cmath>

namespace testbed::plan {

double ridge_growth(const GrowthPerTwoYears& growth, double years) {
  return std::pow(growth.compute / growth.dram, years / 2.0);
}

double interconnect_lag(const GrowthPerTwoYears& growth, double years) {
  return std::pow(growth.dram / growth.interconnect, years / 2.0);
}

}  // namespace testbed::plan
