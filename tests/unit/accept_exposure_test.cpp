// The exposed fraction of all-reduces: the slope's estimator on steps of which the overlap is
// known, and the breakdown's answer on timelines of which it is.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "runtime/accept/exposure.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

// Rounds of steps of which `exposed` of each delay shows; noise_ms: standard deviation.
std::vector<DelayedStep> delayed_steps(double exposed, double noise_ms, int rounds, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0.0, 1.0);
  std::vector<DelayedStep> steps;
  for (int round = 0; round < rounds; ++round) {
    for (const double delay_ms : {5.0, 10.0, 15.0, 20.0}) {
      steps.push_back({delay_ms, 30.0 + exposed * delay_ms + noise_ms * noise(random)});
    }
  }
  return steps;
}

TEST(Exposure, slope_is_the_exposed_fraction) {
  for (const double exposed : {0.0, 0.4, 1.0}) {
    const auto found = exposed_fraction(delayed_steps(exposed, 0.0, 3, 0));
    ASSERT_TRUE(found);
    // Sums of a few numbers below 100 in doubles.
    EXPECT_NEAR(found->value, exposed, 1e-12);
    EXPECT_NEAR(found->low, exposed, 1e-12);
    EXPECT_NEAR(found->high, exposed, 1e-12);
  }
}

// Of 200 seeds a 99 % interval misses about 2; more than 8 has a chance below 1 in 3000 (Poisson),
// and the seeds are fixed.
TEST(Exposure, interval_holds_the_fraction_as_often_as_it_says) {
  int n_missed = 0;
  double width = 0.0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const auto found = exposed_fraction(delayed_steps(0.4, 1.0, 3, seed));
    ASSERT_TRUE(found);
    EXPECT_LE(found->low, found->value);
    EXPECT_GE(found->high, found->value);
    if (found->low > 0.4 || found->high < 0.4) ++n_missed;
    width += (found->high - found->low) / 200.0;
  }
  // Narrow enough to tell overlap from none. By least squares the noise of a slope is
  // 1 / sqrt(sum of squared deviations of 12 delays) = 0.052, and the interval 5.2 of it wide.
  EXPECT_LT(width, 2 * 5.2 * 0.052);
  EXPECT_LE(n_missed, 8);
}

TEST(Exposure, one_disturbed_step_does_not_move_it) {
  std::vector<DelayedStep> steps = delayed_steps(0.4, 0.0, 3, 0);
  steps[3].step_ms += 500.0;
  EXPECT_NEAR(exposed_fraction(steps)->value, 0.4, 1e-12);
}

TEST(Exposure, equal_delays_say_nothing) {
  EXPECT_FALSE(exposed_fraction(std::vector<DelayedStep>{{5.0, 30.0}, {5.0, 31.0}}));
  EXPECT_FALSE(exposed_fraction({}));
}

// Two ranks that reduce while they compute: posted at 100 and 150, done at 450, of which they are
// stopped only from 400 on. From 150 on the transfer takes 300 us, of which 50 show.
RankTimeline overlapping(const Mesh& mesh, int rank, double post_us) {
  RankBuilder b(mesh, rank);
  b.at(Phase::decode, 0).step(0, 0, 500, 500).at(Phase::decode, 0, 0, Site::mlp);
  b.all_reduce(0, 800, post_us, post_us);
  b.t.comms.back().comm.wait_begin_ns = us(400);
  b.t.comms.back().comm.wait_end_ns = us(450);
  return b.t;
}

TEST(Exposure, breakdown_tells_what_stopped_the_ranks) {
  const Mesh mesh{.tp = 2};
  const std::vector<RankTimeline> timelines = {overlapping(mesh, 0, 100),
                                               overlapping(mesh, 1, 150)};
  const auto found = exposed_in_breakdown(timelines, mesh, Phase::decode);
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(*found, 50.0 / 300.0);
  EXPECT_FALSE(exposed_in_breakdown(timelines, mesh, Phase::prefill));
}

TEST(Exposure, blocking_all_reduces_are_exposed) {
  const AnalysisInput input = late_rank_input();
  EXPECT_DOUBLE_EQ(*exposed_in_breakdown(input.timelines, input.mesh, Phase::decode), 1.0);
}

}  // namespace
}  // namespace testbed
