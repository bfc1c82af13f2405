#include "runtime/measure/statistics.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

TEST(Statistics, percentile_interpolates_linearly) {
  const std::vector<double> samples{40.0, 10.0, 30.0, 20.0};
  EXPECT_DOUBLE_EQ(median(samples), 25.0);
  EXPECT_DOUBLE_EQ(percentile(samples, 0.0), 10.0);
  EXPECT_DOUBLE_EQ(percentile(samples, 100.0), 40.0);
  EXPECT_DOUBLE_EQ(percentile(samples, 90.0), 37.0);  // position 2.7
  EXPECT_DOUBLE_EQ(mean(samples), 25.0);
}

TEST(Statistics, D35_percentiles_of_one_sample_are_that_sample) {
  const std::vector<double> one{7.25};
  for (const double p : {0.0, 1.0, 50.0, 90.0, 99.0, 100.0}) {
    EXPECT_EQ(percentile(one, p), 7.25);
  }
  const Summary summary = summarise(one);
  EXPECT_EQ(summary.median, 7.25);
  EXPECT_EQ(summary.p90, 7.25);
  EXPECT_EQ(summary.p99, 7.25);
  EXPECT_EQ(summary.min, 7.25);
  EXPECT_EQ(summary.max, 7.25);
  EXPECT_EQ(summary.n, 1);
  EXPECT_EQ(Repeated{one}.spread(), 0.0);
}

TEST(Statistics, no_sample_has_no_percentile) {
  EXPECT_THROW(median({}), InternalError);
  EXPECT_THROW(summarise({}), InternalError);
  const std::vector<double> one{1.0};
  EXPECT_THROW(percentile(one, 101.0), InternalError);
}

TEST(Statistics, spread_is_relative_to_the_median) {
  EXPECT_DOUBLE_EQ((Repeated{{9.0, 10.0, 12.0}}.spread()), 0.3);
  EXPECT_EQ((Repeated{{-1.0, 0.0, 1.0}}.spread()), 0.0);
}

}  // namespace
}  // namespace testbed
