// Order statistics of small samples. Of one sample every percentile is that sample (D35); of none
// there is no answer, so the functions refuse.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace testbed {

// p in [0, 100], linear interpolation between the order statistics at (n - 1) * p / 100.
double percentile(std::span<const double> samples, double p);
double median(std::span<const double> samples);
double mean(std::span<const double> samples);

struct Summary {
  double median = 0.0;
  double p90 = 0.0;
  double p99 = 0.0;
  double min = 0.0;
  double max = 0.0;
  int64_t n = 0;
};
Summary summarise(std::span<const double> samples);

// One figure per repeat. The headline is the median; spread is (max - min) / median.
struct Repeated {
  std::vector<double> repeats;

  bool empty() const { return repeats.empty(); }
  double median() const { return testbed::median(repeats); }
  double min() const { return percentile(repeats, 0.0); }
  double max() const { return percentile(repeats, 100.0); }
  // 0 where the median is 0.
  double spread() const;
};

}  // namespace testbed
