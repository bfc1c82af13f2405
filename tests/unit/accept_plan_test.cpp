// What the stages say they will measure, against what profiles expect: of --explain, and of what a
// verdict asks for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/accept/verdict.hpp"
#include "runtime/config/acceptance_config.hpp"
#include "tests/unit/accept_plan_support.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> hosts_of_eight(int n_hosts) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 8 * n_hosts; ++rank) {
    hosts.push_back(std::string("host-") + static_cast<char>('a' + rank / 8));
  }
  return hosts;
}

std::vector<std::string> unmet(const std::vector<PlannedCase>& cases,
                               const AcceptanceProfile& profile) {
  std::vector<std::string> names;
  for (const Expectation& expectation : profile.expectations) {
    const bool is_met = std::any_of(cases.begin(), cases.end(), [&](const PlannedCase& planned) {
      return may_meet(planned, expectation);
    });
    if (!is_met) names.push_back(describe(expectation.key));
  }
  return names;
}

TEST(AcceptPlan, measures_all_that_the_shipped_profiles_expect) {
  for (const char* name : {"h100-nvlink", "a100-nvlink", "l40s-pcie"}) {
    const AcceptanceProfile profile = read_acceptance_profile(name);
    EXPECT_THAT(unmet(plan_all({}, profile, hosts_of_eight(1)), profile), IsEmpty()) << name;
  }
  const AcceptanceProfile ndr = read_acceptance_profile("h100-ndr");
  EXPECT_THAT(unmet(plan_all({}, ndr, hosts_of_eight(2)), ndr), IsEmpty());
}

TEST(AcceptPlan, a_case_is_held_to_the_gates_of_its_own_figures) {
  const AcceptanceProfile profile = read_acceptance_profile("h100-nvlink");
  for (const PlannedCase& planned : plan_all({}, profile, hosts_of_eight(1))) {
    for (const Expectation& expectation : profile.expectations) {
      if (!may_meet(planned, expectation)) continue;
      const std::string of_case = planned.stage + "/" + planned.name;
      const FigureKey& key = expectation.key;
      if (planned.stage == "collectives") {
        ASSERT_TRUE(key.op && key.ranks);
        EXPECT_THAT(of_case, HasSubstr(*key.op + " " + std::to_string(*key.ranks) + " rank"));
      } else if (planned.stage == "device") {
        EXPECT_EQ(planned.name == "read", key.figure == "device.read_gb_s") << of_case;
      } else if (planned.stage == "links") {
        EXPECT_EQ(planned.sizes, std::vector{*key.bytes}) << of_case;
      }
    }
  }
}

TEST(AcceptPlan, a_model_is_held_to_its_own_split) {
  AcceptanceProfile profile;
  for (const char* split : {"tp 3", "pp 4"}) {
    profile.expectations.push_back(
        {.key = model_key("model.tpot_ms", "smollm2-135m", split), .expected = 1.0});
  }
  profile.expectations.push_back(
      {.key = model_key("soak.step_ms", "smollm2-135m", "tp 3"), .expected = 1.0});
  AcceptConfig config;
  config.soak_s = 1.0;
  std::vector<std::string> met;
  for (const PlannedCase& planned : plan_all(config, profile, std::vector<std::string>(3, "a"))) {
    for (const Expectation& expectation : profile.expectations) {
      if (!may_meet(planned, expectation)) continue;
      met.push_back(planned.stage + "/" + planned.name + " " + describe(expectation.key));
    }
  }
  EXPECT_THAT(met,
              ElementsAre("model/smollm2-135m tp 3 model.tpot_ms smollm2-135m tp 3",
                          "soak/smollm2-135m tp 3 soak.step_ms smollm2-135m tp 3"));
}

// With the sizes of these cases measured, and nothing of others.
Acceptance measured(const std::vector<PlannedCase>& cases, const AcceptanceProfile& profile) {
  Acceptance acceptance;
  acceptance.finished = true;
  acceptance.profile = profile;
  for (const PlannedCase& planned : cases) {
    CaseResult result{.stage = planned.stage, .name = planned.name};
    if (planned.skip) result.status = CaseStatus::skipped;
    for (const Expectation& expectation : profile.expectations) {
      if (planned.skip || !may_meet(planned, expectation)) continue;
      result.figures.push_back(judged(profile, expectation.key, {expectation.expected}));
    }
    acceptance.cases.push_back(std::move(result));
  }
  return acceptance;
}

Verdict verdict_of(Acceptance acceptance, const Asked& asked) {
  conclude(acceptance, asked);
  return acceptance.verdict;
}

TEST(AcceptPlan, quick_is_held_to_the_sizes_that_it_has) {
  const AcceptanceProfile profile = read_acceptance_profile("h100-nvlink");
  const AcceptConfig quick{.quick = true, .most_bytes = 16 << 20};
  const Asked asked{.cases = plan_all(quick, profile, hosts_of_eight(1)), .quick = true};
  Acceptance acceptance = measured(asked.cases, profile);
  EXPECT_EQ(verdict_of(acceptance, asked), Verdict::accept);
  // The same cases as a whole acceptance leave expected sizes out.
  EXPECT_EQ(verdict_of(acceptance, {.cases = asked.cases}), Verdict::incomplete);
  // A size that quick has is asked for.
  for (CaseResult& result : acceptance.cases) {
    if (result.stage == "collectives") result.figures.clear();
  }
  EXPECT_EQ(verdict_of(acceptance, asked), Verdict::incomplete);
}

// D34: the figures of a case that was chosen are asked for, those of others are not.
TEST(AcceptPlan, D34_a_case_that_was_chosen_owes_the_figures_expected_of_it) {
  const AcceptanceProfile profile = read_acceptance_profile("h100-nvlink");
  std::vector<PlannedCase> cases = plan_all({}, profile, hosts_of_eight(1));
  std::erase_if(cases,
                [](const PlannedCase& planned) { return planned.name != "all_reduce 8 ranks"; });
  ASSERT_EQ(cases.size(), 1U);
  const Asked asked{.cases = cases, .chosen = true};
  Acceptance acceptance = measured(cases, profile);
  EXPECT_EQ(verdict_of(acceptance, asked), Verdict::accept);
  std::erase_if(acceptance.cases.front().figures,
                [](const Figure& figure) { return figure.key.bytes >= 16 << 20; });
  EXPECT_EQ(verdict_of(acceptance, asked), Verdict::incomplete);
}

}  // namespace
}  // namespace testbed
