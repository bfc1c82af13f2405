// What three attempts at a case come to, and what a profile of measured figures expects.
#include "runtime/commands/accept_attempts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/commands/probe_acceptance.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Blame device(int rank) {
  return {.kind = Blame::Kind::device, .ranks = {rank}, .host = "a", .what = "is slow"};
}

CaseResult failed(std::vector<Blame> blamed) {
  CaseResult result{.stage = "device", .name = "read", .status = CaseStatus::failed};
  result.reason = "too slow";
  result.blamed = std::move(blamed);
  result.seconds = 1.0;
  return result;
}

CaseResult passed() {
  CaseResult result{.stage = "device", .name = "read"};
  result.seconds = 1.0;
  return result;
}

TEST(AcceptAttempts, what_passes_both_repeats_is_flaky_and_blames_nobody) {
  const CaseResult result = merged({failed({device(1)}), passed(), passed()});
  EXPECT_EQ(result.status, CaseStatus::flaky);
  EXPECT_THAT(result.reason, HasSubstr("too slow"));
  EXPECT_THAT(result.blamed, IsEmpty());
  EXPECT_EQ(result.attempts, 3);
  EXPECT_DOUBLE_EQ(result.seconds, 3.0);
}

TEST(AcceptAttempts, what_fails_a_repeat_has_failed) {
  const CaseResult result = merged({failed({device(1)}), passed(), failed({device(1)})});
  EXPECT_EQ(result.status, CaseStatus::failed);
  EXPECT_EQ(result.reason, "too slow");
  EXPECT_THAT(result.blamed, ElementsAre(device(1)));
  EXPECT_THAT(result.notes, ElementsAre("failed in 2 of 3 attempts"));
}

// A wrong value that shows when the case is repeated is no luck; that it was slow before is kept.
TEST(AcceptAttempts, what_ends_the_attempts_counts_them_all) {
  CaseResult wrong = failed({});
  wrong.corrupt = true;
  wrong.reason = "wrong value";
  const CaseResult result = merged({failed({device(1)}), passed(), wrong});
  EXPECT_TRUE(result.corrupt);
  EXPECT_EQ(result.reason, "wrong value");
  EXPECT_EQ(result.attempts, 3);
  EXPECT_DOUBLE_EQ(result.seconds, 3.0);
  EXPECT_THAT(result.notes, ElementsAre("an earlier attempt failed: too slow"));
  EXPECT_EQ(merged({failed({})}).attempts, 1);
}

TEST(AcceptAttempts, only_whom_two_attempts_blame_is_blamed) {
  EXPECT_THAT(
      merged({failed({device(1)}), failed({device(2)}), failed({device(2), device(3)})}).blamed,
      ElementsAre(device(2)));
}

TEST(AcceptAttempts, a_cohort_whose_worst_is_somebody_else_each_time_is_flaky) {
  const std::vector<CaseResult> attempts{
      failed({device(1)}), failed({device(2)}), failed({device(3)})};
  const CaseResult restless = merged(attempts);
  EXPECT_EQ(restless.status, CaseStatus::flaky);
  EXPECT_THAT(restless.reason, HasSubstr("failed in 3 of 3 attempts"));
  EXPECT_THAT(restless.blamed, IsEmpty());

  std::vector<CaseResult> of_a_gate = attempts;
  of_a_gate[1].figures.push_back({.samples = {1.0}, .passed = false});
  const CaseResult nobody = merged(of_a_gate);
  EXPECT_EQ(nobody.status, CaseStatus::failed);
  EXPECT_THAT(nobody.blamed, IsEmpty());
  EXPECT_THAT(nobody.notes, SizeIs(2));

  EXPECT_EQ(merged({failed({}), failed({}), failed({})}).status, CaseStatus::failed);
}

TEST(ProbeAcceptance, a_profile_holds_its_own_machine) {
  const AcceptanceProfile none;
  const FigureKey time = link_key("link.one_way_us", 8, "within-host");
  const std::vector<Figure> figures{judged(none, read_key(), {10.0, 11.0, 12.0}, {0}),
                                    judged(none, read_key(), {8.0, 9.0, 2.0}, {1}),
                                    judged(none, time, {1.0, 1.1, 3.0}, {0, 1})};
  AcceptanceProfile profile;
  profile.expectations = expectations_of(figures, "this test");
  ASSERT_THAT(profile.expectations, SizeIs(2));
  const Expectation& read = profile.expectations.front();
  EXPECT_DOUBLE_EQ(read.expected, 9.5);  // of the medians 11 and 8
  // Twice from 9.5 down to 2 is more than the whole: as much as a rate may have.
  EXPECT_DOUBLE_EQ(read.tolerance, 0.90);
  EXPECT_NEAR(profile.expectations.back().tolerance, 3.46, 1e-9);  // twice 1.9 of 1.1, rounded up
  for (const Figure& figure : figures) {
    EXPECT_TRUE(judged(profile, figure.key, figure.samples).passed);
  }
}

TEST(ProbeAcceptance, what_repeats_well_has_the_least_tolerance) {
  const std::vector<Expectation> expectations =
      expectations_of({judged({}, read_key(), {10.0, 10.1, 9.9})}, "this test");
  EXPECT_DOUBLE_EQ(expectations.front().tolerance, 0.25);
  EXPECT_EQ(expectations.front().source, "this test");
}

}  // namespace
}  // namespace testbed
