// What a profile expects nothing of, as the verdict's label says it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/profile_gaps.hpp"
#include "runtime/config/acceptance_config.hpp"
#include "tests/unit/accept_plan_support.hpp"

namespace testbed {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

PlannedCase measuring(std::vector<FigureKey> keys) {
  PlannedCase planned;
  planned.measures = std::move(keys);
  return planned;
}

FigureKey collective(const char* op, int ranks, const char* scope) {
  return {.figure = "collective.us", .op = op, .ranks = ranks, .scope = scope};
}

AcceptanceProfile expecting(const std::vector<FigureKey>& keys) {
  AcceptanceProfile profile;
  for (const FigureKey& key : keys) profile.expectations.push_back({.key = key, .expected = 1.0});
  return profile;
}

TEST(ProfileGaps, are_named_as_generally_as_they_are) {
  const std::vector<PlannedCase> cases{
      measuring({read_key()}),
      measuring({collective("all_reduce", 2, "within-host"),
                 collective("all_reduce", 4, "within-host"),
                 collective("broadcast", 2, "within-host"),
                 collective("all_reduce", 2, "between-hosts")}),
      measuring({model_key("model.ttft_ms", "m", "tp 2"), model_key("model.tpot_ms", "m", "tp 2")}),
      measuring({link_key("link.one_way_us", 8, "within-host"),
                 link_key("link.one_way_gb_s", 1 << 20, "within-host")})};
  EXPECT_THAT(profile_gaps({}, cases), ElementsAre("device", "collective", "model", "link"));
  const AcceptanceProfile some = expecting({read_key(),
                                            collective("all_reduce", 2, "within-host"),
                                            {.figure = "link.one_way_gb_s", .bytes = 16 << 20}});
  EXPECT_THAT(profile_gaps(some, cases),
              ElementsAre("collective.us within-host all_reduce 4 ranks",
                          "collective.us within-host broadcast",
                          "collective.us between-hosts",
                          "model",
                          "link.one_way_us"));
}

TEST(ProfileGaps, are_none_where_all_is_expected_or_does_not_run) {
  PlannedCase skipped = measuring({model_key("model.tpot_ms", "m", "tp 2")});
  skipped.skip = "does not fit";
  EXPECT_THAT(profile_gaps(expecting({read_key()}), {measuring({read_key()}), skipped}), IsEmpty());
}

std::vector<std::string> gaps_of(const char* name, int n_hosts) {
  const AcceptanceProfile profile = read_acceptance_profile(name);
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 8 * n_hosts; ++rank) hosts.push_back(std::to_string(rank / 8));
  AcceptConfig config;
  config.soak_s = 60.0;
  return profile_gaps(profile, plan_all(config, profile, hosts));
}

TEST(ProfileGaps, of_the_shipped_profiles) {
  for (const char* name : {"h100-nvlink", "a100-nvlink", "l40s-pcie"}) {
    EXPECT_THAT(gaps_of(name, 1),
                ElementsAre("link.one_way_us",
                            "collective.us within-host broadcast",
                            "collective.busbw_gb_s within-host broadcast",
                            "model",
                            "soak"))
        << name;
  }
  const std::vector<std::string> two_hosts = gaps_of("h100-ndr", 2);
  EXPECT_THAT(two_hosts, Contains("collective.us between-hosts"));
  EXPECT_THAT(two_hosts, Contains("collective.busbw_gb_s between-hosts broadcast"));
  EXPECT_THAT(two_hosts, Not(Contains(HasSubstr("link.one_way_gb_s"))));
  // Of a profile of one host, those between hosts.
  EXPECT_THAT(gaps_of("h100-nvlink", 2), Contains("link.one_way_gb_s between-hosts"));
  EXPECT_THAT(gaps_of("cpu-host", 1), ElementsAre("device", "link", "collective", "model", "soak"));
}

}  // namespace
}  // namespace testbed
