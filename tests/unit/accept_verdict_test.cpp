#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/accept/drift.hpp"
#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/accept/verdict.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

CaseResult result_of(const std::string& name, CaseStatus status, bool corrupt = false) {
  return {.stage = "device",
          .name = name,
          .status = status,
          .corrupt = corrupt,
          .reason = status == CaseStatus::passed ? "" : "because of " + name};
}

// With these results of as many cases; finished.
Acceptance with(std::vector<CaseResult> results, AcceptanceProfile profile = {}) {
  Acceptance acceptance;
  acceptance.finished = true;
  acceptance.profile = std::move(profile);
  acceptance.cases = std::move(results);
  return acceptance;
}

// What was skipped was to be skipped.
Asked asked_for(const Acceptance& acceptance, bool chosen = false) {
  Asked asked{.cases = {}, .chosen = chosen};
  for (const CaseResult& result : acceptance.cases) {
    asked.cases.push_back({.stage = result.stage, .name = result.name});
    if (result.status == CaseStatus::skipped) asked.cases.back().skip = result.reason;
  }
  return asked;
}

Acceptance concluded(std::vector<CaseResult> results,
                     AcceptanceProfile profile = {},
                     bool chosen = false) {
  Acceptance acceptance = with(std::move(results), std::move(profile));
  conclude(acceptance, asked_for(acceptance, chosen));
  return acceptance;
}

AcceptanceProfile expecting(const FigureKey& key) {
  AcceptanceProfile profile;
  profile.expectations = {{.key = key, .expected = 100.0, .tolerance = 0.1, .where = "p.toml:3"}};
  return profile;
}

TEST(AcceptVerdict, what_passed_is_accepted) {
  const Acceptance acceptance = concluded({result_of("read", CaseStatus::passed)});
  EXPECT_EQ(acceptance.verdict, Verdict::accept);
  EXPECT_THAT(acceptance.reasons, IsEmpty());
  EXPECT_EQ(acceptance.coverage.cases.at("device"), std::make_pair(1, 1));
}

TEST(AcceptVerdict, the_worst_decides_and_is_said_first) {
  const CaseResult corrupt = result_of("corrupt", CaseStatus::failed, true);
  const CaseResult broken = result_of("broken", CaseStatus::error);
  const CaseResult slow = result_of("slow", CaseStatus::failed);
  const CaseResult skipped = result_of("skipped", CaseStatus::skipped);
  const Acceptance all = concluded({skipped, slow, broken, corrupt}, {}, true);
  EXPECT_EQ(all.verdict, Verdict::corruption);
  EXPECT_THAT(all.reasons,
              ElementsAre(HasSubstr("device/corrupt: because"),
                          HasSubstr("broken"),
                          HasSubstr("slow"),
                          HasSubstr("skipped")));
  EXPECT_EQ(concluded({skipped, slow, broken}, {}, true).verdict, Verdict::infrastructure);
  EXPECT_EQ(concluded({skipped, slow}, {}, true).verdict, Verdict::reject);
  EXPECT_EQ(concluded({skipped, result_of("read", CaseStatus::passed)}, {}, true).verdict,
            Verdict::incomplete);
}

TEST(AcceptVerdict, the_exit_codes_are_those_of_the_documentation) {
  EXPECT_EQ(static_cast<int>(Verdict::accept), 0);
  EXPECT_EQ(static_cast<int>(Verdict::reject), 1);
  EXPECT_EQ(static_cast<int>(Verdict::incomplete), 2);
  EXPECT_EQ(static_cast<int>(Verdict::infrastructure), 3);
  EXPECT_EQ(static_cast<int>(Verdict::corruption), 4);
}

TEST(AcceptVerdict, D34_nothing_tested_is_never_a_pass) {
  const Acceptance none = concluded({});
  EXPECT_EQ(none.verdict, Verdict::incomplete);
  EXPECT_THAT(none.reasons, ElementsAre(HasSubstr("no case matches")));
  const Acceptance skipped = concluded({result_of("read", CaseStatus::skipped)});
  EXPECT_EQ(skipped.verdict, Verdict::incomplete);
  EXPECT_THAT(skipped.reasons, ElementsAre(HasSubstr("nothing was tested")));
}

TEST(AcceptVerdict, D34_a_size_that_was_expected_and_not_run_is_incomplete) {
  const FigureKey key = link_key("link.one_way_gb_s", 1 << 24, "within-host");
  const AcceptanceProfile profile = expecting(key);
  CaseResult links = result_of("bandwidth", CaseStatus::passed);
  links.figures = {judged(profile, link_key("link.one_way_gb_s", 1 << 20, "within-host"), {100.0})};
  const Acceptance missed = concluded({links}, profile);
  EXPECT_EQ(missed.verdict, Verdict::incomplete);
  EXPECT_THAT(missed.reasons, ElementsAre(HasSubstr("16777216 bytes within-host (p.toml:3)")));
  EXPECT_THAT(missed.coverage.gates_not_met_by_a_figure, SizeIs(1));
  links.figures.push_back(judged(profile, key, {100.0}));
  const Acceptance met = concluded({links}, profile);
  EXPECT_EQ(met.verdict, Verdict::accept);
  EXPECT_EQ(met.coverage.gated, 1);
  EXPECT_EQ(met.coverage.figures, 2);
}

TEST(AcceptVerdict, D34_a_skipped_case_is_incomplete_only_if_it_was_asked_for) {
  const std::vector<CaseResult> results{result_of("read", CaseStatus::passed),
                                        result_of("soak", CaseStatus::skipped)};
  EXPECT_EQ(concluded(results, {}, false).verdict, Verdict::accept);
  EXPECT_EQ(concluded(results, {}, true).verdict, Verdict::incomplete);
}

// A model that does not fit is found out when it is to run, without which nothing was said of it.
TEST(AcceptVerdict, D34_a_case_that_was_to_run_and_could_not_is_incomplete) {
  const Acceptance acceptance =
      with({result_of("read", CaseStatus::passed), result_of("tp 8", CaseStatus::skipped)});
  Asked asked = asked_for(acceptance);
  const auto verdict = [&] {
    Acceptance concluded = acceptance;
    conclude(concluded, asked);
    return concluded.verdict;
  };
  EXPECT_EQ(verdict(), Verdict::accept);
  asked.cases.back().skip.reset();
  EXPECT_EQ(verdict(), Verdict::incomplete);
}

TEST(AcceptVerdict, cases_that_were_chosen_need_not_meet_every_expectation) {
  const AcceptanceProfile profile = expecting(gemm_key(DType::BF16));
  EXPECT_EQ(concluded({result_of("read", CaseStatus::passed)}, profile, true).verdict,
            Verdict::accept);
}

// A memory or time too short for what was planned.
TEST(AcceptVerdict, D34_a_part_that_was_planned_and_not_run_is_incomplete) {
  CaseResult result = result_of("all_reduce", CaseStatus::passed);
  EXPECT_EQ(concluded({result}).verdict, Verdict::accept);
  result.not_run = {"payloads above 512 bytes: no memory"};
  const Acceptance acceptance = concluded({result});
  EXPECT_EQ(acceptance.verdict, Verdict::incomplete);
  EXPECT_THAT(acceptance.reasons,
              ElementsAre("device/all_reduce: payloads above 512 bytes: no memory"));
}

TEST(AcceptVerdict, D34_what_was_not_reached_is_incomplete) {
  Acceptance acceptance = with({result_of("read", CaseStatus::passed)});
  Asked asked = asked_for(acceptance);
  asked.cases.push_back({.stage = "links", .name = "latency"});
  conclude(acceptance, asked);
  EXPECT_EQ(acceptance.verdict, Verdict::incomplete);
  EXPECT_THAT(acceptance.reasons, ElementsAre(HasSubstr("1 of 2 cases were not reached")));
}

TEST(AcceptVerdict, what_is_written_before_the_end_is_no_pass) {
  Acceptance acceptance = with({result_of("read", CaseStatus::passed)});
  acceptance.finished = false;
  conclude(acceptance, asked_for(acceptance));
  EXPECT_EQ(acceptance.verdict, Verdict::infrastructure);
}

TEST(AcceptVerdict, flaky_cases_reject_beyond_what_the_profile_allows) {
  const std::vector<CaseResult> results{result_of("read", CaseStatus::passed),
                                        result_of("gemm", CaseStatus::flaky)};
  const Acceptance none_allowed = concluded(results);
  EXPECT_EQ(none_allowed.verdict, Verdict::reject);
  EXPECT_THAT(none_allowed.reasons, ElementsAre(HasSubstr("1 flaky case,"), HasSubstr("gemm")));
  AcceptanceProfile lenient;
  lenient.flaky_allowed = 1;
  EXPECT_EQ(concluded(results, lenient).verdict, Verdict::accept);
}

// Of gates that only the algorithm tells apart the best has to be met.
TEST(AcceptVerdict, a_ring_in_the_place_of_NVLS_leaves_its_gate_open) {
  const auto key = [](CommAlgorithm algorithm) {
    return collective_key(
        "collective.busbw_gb_s", CommOp::all_reduce, 8, 1 << 28, "within-host", algorithm);
  };
  AcceptanceProfile profile;
  profile.expectations = {{.key = key(CommAlgorithm::nvls), .expected = 430.0, .tolerance = 0.1},
                          {.key = key(CommAlgorithm::ring), .expected = 340.0, .tolerance = 0.1}};
  const auto verdict_by = [&](CommAlgorithm algorithm) {
    CaseResult result = result_of("all_reduce", CaseStatus::passed);
    result.figures = {judged(profile, key(algorithm), {435.0})};
    return concluded({result}, profile).verdict;
  };
  EXPECT_EQ(verdict_by(CommAlgorithm::nvls), Verdict::accept);
  EXPECT_EQ(verdict_by(CommAlgorithm::ring), Verdict::incomplete);
}

Acceptance with_reading(std::vector<double> samples, int rank) {
  CaseResult result = result_of("read", CaseStatus::passed);
  result.figures = {judged({}, read_key(), std::move(samples), {rank})};
  return with({result});
}

TEST(AcceptDrift, only_what_leaves_both_spreads_is_beyond_them) {
  const Acceptance before = with_reading({100.0, 101.0, 102.0}, 0);
  const std::vector<Drift> less = drift_since(before, with_reading({50.5, 50.0, 51.0}, 0));
  ASSERT_THAT(less, SizeIs(1));
  EXPECT_DOUBLE_EQ(less.front().change, -0.5);
  EXPECT_TRUE(less.front().beyond_spread);
  EXPECT_FALSE(drift_since(before, with_reading({90.0, 91.0, 100.5}, 0)).front().beyond_spread);
  EXPECT_THAT(drift_since(before, with_reading({50.0}, 1)), IsEmpty());
}

TEST(AcceptDrift, one_sample_has_no_spread_to_leave) {
  const Acceptance before = with_reading({100.0}, 0);
  EXPECT_FALSE(drift_since(before, with_reading({50.0, 51.0}, 0)).front().beyond_spread);
  EXPECT_FALSE(
      drift_since(with_reading({100.0, 101.0}, 0), with_reading({50.0}, 0)).front().beyond_spread);
}

TEST(AcceptDrift, a_link_by_itself_is_another_than_beside_others) {
  const auto with_link = [](bool alone) {
    Acceptance acceptance = with_reading({10.0, 11.0}, 0);
    acceptance.cases.front().figures.front().alone = alone;
    return acceptance;
  };
  EXPECT_THAT(drift_since(with_link(true), with_link(true)), SizeIs(1));
  EXPECT_THAT(drift_since(with_link(true), with_link(false)), IsEmpty());
}

TEST(AcceptDrift, a_baseline_of_another_job_is_refused_or_labelled) {
  Acceptance before = with_reading({100.0}, 0);
  before.device = "cpu";
  before.hosts = {"a"};
  Acceptance now = before;
  EXPECT_FALSE(refusal_of_baseline(before, now));
  EXPECT_THAT(baseline_labels(before, now), IsEmpty());
  now.hosts = {"b"};
  now.profile.name = "mine";
  EXPECT_FALSE(refusal_of_baseline(before, now));
  EXPECT_THAT(baseline_labels(before, now),
              ElementsAre(HasSubstr("profile , this against mine"), HasSubstr("other hosts")));
  now.world_size = 8;
  EXPECT_THAT(refusal_of_baseline(before, now).value_or(""), HasSubstr("1 cpu ranks"));
}

TEST(AcceptDrift, the_group_that_fell_behind_and_the_worse_algorithm_are_shown) {
  const auto with_collective =
      [](CommAlgorithm algorithm, double gb_s, std::vector<int> ranks, int64_t n_bytes = 1 << 28) {
        CaseResult result = result_of("all_reduce", CaseStatus::passed);
        result.figures = {judged(
            {},
            collective_key("collective.busbw_gb_s", CommOp::all_reduce, 8, n_bytes, "", algorithm),
            {gb_s},
            std::move(ranks))};
        return with({result});
      };
  const Acceptance before = with_collective(CommAlgorithm::nvls, 400.0, {});
  const std::vector<Drift> behind =
      drift_since(before, with_collective(CommAlgorithm::ring, 200.0, {4, 5}));
  ASSERT_THAT(behind, SizeIs(1));
  EXPECT_DOUBLE_EQ(behind.front().change, -0.5);
  EXPECT_THAT(behind.front().ranks, ElementsAre(4, 5));
  EXPECT_THAT(drift_since(before, with_collective(CommAlgorithm::nvls, 400.0, {}, 1 << 20)),
              IsEmpty());
}

}  // namespace
}  // namespace testbed
