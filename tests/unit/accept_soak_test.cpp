// Drift of a soak: slower beyond what the steps' own spread explains.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "runtime/accept/soak.hpp"

namespace testbed {
namespace {

std::vector<double> steps(int n, double slower_at_the_end, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> noise(0.8, 1.2);
  std::vector<double> ms;
  for (int i = 0; i < n; ++i) {
    const double warm = static_cast<double>(i) / (n - 1);
    ms.push_back(10.0 * (1.0 + slower_at_the_end * warm) * noise(random));
  }
  return ms;
}

TEST(Soak, noise_is_no_drift) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const auto drift = step_drift(steps(30, 0.0, seed), 0.1);
    ASSERT_TRUE(drift);
    EXPECT_FALSE(drift->beyond_spread) << "seed " << seed << ", change " << drift->change;
  }
}

TEST(Soak, half_as_slow_again_is) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const auto drift = step_drift(steps(30, 0.9, seed), 0.1);
    ASSERT_TRUE(drift);
    EXPECT_TRUE(drift->beyond_spread) << "seed " << seed << ", change " << drift->change;
    EXPECT_GT(drift->last_ms, drift->first_ms);
  }
}

TEST(Soak, change_is_of_the_medians_of_the_thirds) {
  const std::vector<double> ms = {1, 2, 3, 9, 9, 9, 4, 5, 6};
  const auto drift = step_drift(ms, 0.1);
  ASSERT_TRUE(drift);
  EXPECT_DOUBLE_EQ(drift->first_ms, 2.0);
  EXPECT_DOUBLE_EQ(drift->last_ms, 5.0);
  EXPECT_DOUBLE_EQ(drift->change, 1.5);
  EXPECT_TRUE(drift->beyond_spread);
  EXPECT_FALSE(step_drift(ms, 1.6)->beyond_spread);
}

TEST(Soak, too_few_say_nothing) { EXPECT_FALSE(step_drift(steps(8, 3.0, 0), 0.1)); }

TEST(Soak, condensed_keeps_order_and_medians) {
  EXPECT_EQ(condensed(std::vector<double>{1, 2, 3}, 8), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(condensed(std::vector<double>{1, 2, 9, 4, 5, 6}, 2), (std::vector<double>{2, 5}));
  EXPECT_TRUE(condensed({}, 4).empty());
}

}  // namespace
}  // namespace testbed
