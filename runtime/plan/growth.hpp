// How the ridge moves when peak compute grows faster than bandwidth (rates per two years: Gholami
// et al., "AI and Memory Wall", 2024: twenty years of server hardware).
#pragma once

namespace testbed::plan {

struct GrowthPerTwoYears {
  double compute = 3.0;
  double dram = 1.6;
  double interconnect = 1.4;
};

// Factor by which peak FLOP/s per byte/s of memory grows in that many years.
double ridge_growth(const GrowthPerTwoYears& growth, double years);
// Factor by which memory outgrows the links between devices.
double interconnect_lag(const GrowthPerTwoYears& growth, double years);

}  // namespace testbed::plan
