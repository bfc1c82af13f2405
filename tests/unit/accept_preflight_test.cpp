// What preflight says of hosts that differ, and what the stage device says of devices that do.
#include <gmock/gmock.h>

#include "runtime/accept/device_judgement.hpp"
#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/accept/host_comparison.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::string> hosts{"a", "a", "b", "b", "c", "c"};

// Two ranks on each of three hosts that are alike: every fact that a GPU states (accept_gpu.cpp).
std::vector<Facts> like_facts() {
  std::vector<Facts> all;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const std::string seat = std::to_string(rank % 2);
    all.push_back({{"testbed", "0.1.0"},
                   {"kernel", "6.1"},
                   {"processor", "some processor"},
                   {"governor", "performance"},
                   {"env.NCCL_ALGO", "Ring"},
                   {"cores", "16"},
                   {"ranks_on_host", "2"},
                   {"memory_gb", std::to_string(100.0 + static_cast<double>(rank))},
                   {"memory_available_gb", "64.000"},
                   {"dev_shm_free_gb", "8.000"},
                   {"rank.binding", seat == "0" ? "0-7" : "8-15"},
                   {"rank.threads", "8"},
                   {"device.name", "NVIDIA H100 80GB HBM3"},
                   {"device.ecc", "on"},
                   {"device.pci", "0000:1" + seat + ":00.0"},
                   {"device.uuid", "GPU-" + std::to_string(rank)},
                   {"device.pcie_generation", "5"},
                   {"device.pcie_lanes", "16"},
                   {"device.nvlinks", "18"},
                   {"device.power_limit_mw", "700000"},
                   {"device.max_clock_mhz", "1980"},
                   {"device.ecc_uncorrected", "0"},
                   {"device.nics", "mlx5_" + seat},
                   {"device.throttle_reasons", "sw_power_cap"},
                   {"device.clock_mhz", "1980"},
                   {"device.memory_gb", "80.0"}});
  }
  return all;
}

CaseResult compared(const std::vector<Facts>& facts, FactGroup group, bool may_share = false) {
  CaseResult result{.stage = "preflight", .name = std::string(fact_group_names[size_t(group)])};
  HostComparison(hosts, facts, may_share).compare(group, result);
  return result;
}

TEST(Preflight, HostsThatAreAlikePassEveryGroup) {
  for (size_t group = 0; group < std::size(fact_group_names); ++group) {
    const CaseResult result = compared(like_facts(), static_cast<FactGroup>(group));
    EXPECT_EQ(result.status, CaseStatus::passed) << result.reason;
    EXPECT_THAT(result.blamed, IsEmpty());
    EXPECT_THAT(result.notes, IsEmpty());
  }
}

// Each fact alone, in its own group and in no other, with both values.
TEST(Preflight, AHostThatDeviatesIsNamedWithBothValues) {
  const std::vector<std::tuple<std::string, std::string, FactGroup>> deviations{
      {"testbed", "0.0.9", FactGroup::versions},
      {"kernel", "5.10", FactGroup::versions},
      {"env.NCCL_ALGO", "Tree", FactGroup::environment},
      {"device.ecc", "off", FactGroup::devices},
      {"device.name", "NVIDIA A100", FactGroup::devices},
      {"device.pcie_generation", "4", FactGroup::devices},
      {"device.pcie_lanes", "8", FactGroup::devices},
      {"device.nvlinks", "12", FactGroup::devices},
      {"device.power_limit_mw", "350000", FactGroup::devices},
      {"cores", "8", FactGroup::devices},
      {"governor", "powersave", FactGroup::clocks},
      {"device.max_clock_mhz", "1785", FactGroup::clocks},
      {"device.clock_mhz", "1200", FactGroup::clocks},
      {"memory_gb", "50", FactGroup::memory},
      {"device.memory_gb", "40.0", FactGroup::memory}};
  for (const auto& [fact, value, group] : deviations) {
    std::vector<Facts> facts = like_facts();
    facts[2][fact] = value;
    facts[3][fact] = value;
    for (size_t g = 0; g < std::size(fact_group_names); ++g) {
      const CaseResult result = compared(facts, static_cast<FactGroup>(g));
      if (static_cast<FactGroup>(g) != group) {
        EXPECT_EQ(result.status, CaseStatus::passed) << fact << ": " << result.reason;
        continue;
      }
      EXPECT_EQ(result.status, CaseStatus::failed) << fact;
      ASSERT_EQ(result.blamed.size(), 1U) << fact;
      EXPECT_EQ(result.blamed[0].kind, Blame::Kind::host);
      EXPECT_EQ(result.blamed[0].host, "b");
      EXPECT_THAT(result.blamed[0].ranks, ElementsAre(2, 3));
      EXPECT_THAT(result.blamed[0].what, HasSubstr(fact + " is " + value + ", the others'"));
      EXPECT_THAT(result.reason, HasSubstr("host b: "));
    }
  }
}

TEST(Preflight, WhatOneRankDoesNotKnowDeviates) {
  std::vector<Facts> facts = like_facts();
  facts[5].erase("env.NCCL_ALGO");
  const CaseResult result = compared(facts, FactGroup::environment);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_EQ(result.blamed[0].host, "c");
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(5));
  EXPECT_THAT(result.blamed[0].what, HasSubstr("is not known, the others' Ring"));
}

TEST(Preflight, WithoutAMajorityAllAreNamed) {
  std::vector<Facts> facts = like_facts();
  for (size_t rank = 0; rank < 6; ++rank) facts[rank]["kernel"] = "6." + std::to_string(rank / 2);
  const CaseResult result = compared(facts, FactGroup::versions);
  EXPECT_EQ(result.blamed.size(), 3U);
  EXPECT_THAT(result.reason, HasSubstr("no majority"));
}

TEST(Preflight, FreeMemoryMayDiffer) {
  std::vector<Facts> facts = like_facts();
  facts[2]["memory_available_gb"] = "1.0";
  facts[2]["dev_shm_free_gb"] = "0.1";
  EXPECT_EQ(compared(facts, FactGroup::memory).status, CaseStatus::passed);
}

TEST(Preflight, D18_OneDeviceForTwoRanksIsRefusedUnlessAllowed) {
  std::vector<Facts> facts = like_facts();
  facts[5]["device.pci"] = facts[4]["device.pci"];
  const CaseResult result = compared(facts, FactGroup::placement);
  EXPECT_EQ(result.status, CaseStatus::failed);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_EQ(result.blamed[0].host, "c");
  EXPECT_THAT(result.blamed[0].what, HasSubstr("ranks 4 and 5 both have device.pci 0000:10:00.0"));
  const CaseResult allowed = compared(facts, FactGroup::placement, true);
  EXPECT_EQ(allowed.status, CaseStatus::passed);
  EXPECT_THAT(allowed.notes, ElementsAre(HasSubstr("ranks 4 and 5 both have")));
}

TEST(Preflight, BindingsThatDifferBetweenHostsAreNoted) {
  std::vector<Facts> facts = like_facts();
  facts[3]["rank.binding"] = "16-23";
  const CaseResult result = compared(facts, FactGroup::placement);
  EXPECT_EQ(result.status, CaseStatus::passed);
  EXPECT_THAT(result.notes, ElementsAre("rank.binding of rank 1 (a) is 8-15, of rank 3 (b) 16-23"));
}

TEST(Preflight, NicsThatDifferBetweenHostsFail) {
  std::vector<Facts> facts = like_facts();
  facts[3]["device.nics"] = "mlx5_7";
  const CaseResult result = compared(facts, FactGroup::placement);
  EXPECT_EQ(result.status, CaseStatus::failed);
  EXPECT_EQ(result.reason, "host b: rank 3, seat 1: device.nics is mlx5_7, the others' mlx5_1");
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(3));
  facts[3].erase("device.nics");  // the host has none
  EXPECT_EQ(compared(facts, FactGroup::placement).status, CaseStatus::failed);
}

// Of two hosts neither is right.
TEST(Preflight, NicsOfTwoHostsThatDifferFailOnBoth) {
  const std::vector<std::string> two{"a", "a", "b", "b"};
  std::vector<Facts> facts = like_facts();
  facts.resize(two.size());
  facts[2]["device.nics"] = "mlx5_7";
  CaseResult result;
  HostComparison(two, facts).compare(FactGroup::placement, result);
  EXPECT_EQ(result.status, CaseStatus::failed);
  ASSERT_EQ(result.blamed.size(), 2U);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(0));
  EXPECT_THAT(result.blamed[1].ranks, ElementsAre(2));
}

TEST(Preflight, GPUsThatSlowDownForHeatOrAPowerBrakeFail) {
  for (const char* reason : {"hw_slowdown",
                             "sw_power_cap, hw_thermal_slowdown",
                             "sw_thermal_slowdown",
                             "hw_power_brake_slowdown"}) {
    std::vector<Facts> facts = like_facts();
    for (Facts& each : facts) each["device.throttle_reasons"] = reason;  // alike on all
    const CaseResult all = compared(facts, FactGroup::clocks);
    EXPECT_EQ(all.status, CaseStatus::failed) << reason;
    EXPECT_EQ(all.blamed.size(), 3U) << reason;
    facts = like_facts();
    facts[4]["device.throttle_reasons"] = reason;
    const CaseResult one = compared(facts, FactGroup::clocks);
    EXPECT_EQ(one.status, CaseStatus::failed) << reason;
    ASSERT_EQ(one.blamed.size(), 1U) << reason;
    EXPECT_EQ(one.blamed[0].host, "c");
    EXPECT_THAT(one.blamed[0].ranks, ElementsAre(4));
    EXPECT_THAT(one.reason, HasSubstr(reason));
    EXPECT_EQ(compared(facts, FactGroup::placement).status, CaseStatus::passed);
  }
  std::vector<Facts> usual = like_facts();
  usual[4]["device.throttle_reasons"] = "gpu_idle, applications_clocks_setting, sync_boost";
  EXPECT_EQ(compared(usual, FactGroup::clocks).status, CaseStatus::passed);
}

// Also where all have them, or there is one rank alone.
TEST(Preflight, UncorrectedErrorsFailHoweverManyHaveThem) {
  std::vector<Facts> facts = like_facts();
  for (Facts& each : facts) each["device.ecc_uncorrected"] = "3";
  const CaseResult all = compared(facts, FactGroup::devices);
  EXPECT_EQ(all.status, CaseStatus::failed);
  EXPECT_EQ(all.blamed.size(), 3U);
  CaseResult alone;
  const std::vector<std::string> one_host{"a"};
  const std::vector<Facts> one_rank{facts[0]};
  HostComparison(one_host, one_rank).compare(FactGroup::devices, alone);
  EXPECT_EQ(alone.status, CaseStatus::failed);
  EXPECT_EQ(alone.reason, "host a: device.ecc_uncorrected of rank 0 is 3, must be 0");
}

TEST(Preflight, RequirementsAreHeldHostByHost) {
  const Requirements fulfilled{.devices_per_host = 2,
                               .device_name = "H100",
                               .device_memory_gb = 79.0,
                               .host_memory_gb = 64.0,
                               .dev_shm_gb = 8.0,
                               .ecc = true,
                               .clock_mhz = 1900.0};
  const auto required = [](const Requirements& requirements, const std::vector<Facts>& facts) {
    CaseResult result;
    for (size_t group = 0; group < std::size(fact_group_names); ++group) {
      HostComparison(hosts, facts).require(static_cast<FactGroup>(group), requirements, result);
    }
    return result;
  };
  EXPECT_EQ(required(fulfilled, like_facts()).status, CaseStatus::passed);
  EXPECT_EQ(required({}, like_facts()).status, CaseStatus::passed);
  const std::vector<std::tuple<std::string, std::string, std::string>> lacks{
      {"ranks_on_host", "1", "required is 2"},
      {"device.name", "NVIDIA A100", "required is H100"},
      {"device.memory_gb", "40.0", "required is at least 79"},
      {"memory_available_gb", "63.9", "required is at least 64"},
      {"dev_shm_free_gb", "7.9", "required is at least 8"},
      {"device.ecc", "off", "required is on"},
      {"device.clock_mhz", "1200", "required is at least 1900"}};
  for (const auto& [fact, value, text] : lacks) {
    std::vector<Facts> facts = like_facts();
    facts[4][fact] = value;
    const CaseResult result = required(fulfilled, facts);
    EXPECT_EQ(result.status, CaseStatus::failed) << fact;
    ASSERT_EQ(result.blamed.size(), 1U) << fact;
    EXPECT_EQ(result.blamed[0].host, "c");
    EXPECT_THAT(result.blamed[0].what, HasSubstr(fact + " is " + value + ", " + text));
    facts[4].erase(fact);
    const CaseResult unknown = required(fulfilled, facts);
    EXPECT_EQ(unknown.status, CaseStatus::failed) << fact;
    EXPECT_THAT(unknown.reason, HasSubstr(fact + " is not known")) << fact;
  }
}

// Visible to each rank are all of a host's devices, or its own alone.
TEST(Preflight, DevicesOfAHostAreCountedHoweverManyARankSees) {
  const auto required = [](const std::vector<Facts>& facts) {
    CaseResult result;
    HostComparison(hosts, facts).require(FactGroup::devices, {.devices_per_host = 2}, result);
    return result;
  };
  std::vector<Facts> facts = like_facts();
  for (const char* n_visible : {"2", "1"}) {
    for (Facts& of_rank : facts) of_rank["device.count"] = n_visible;
    EXPECT_EQ(required(facts).status, CaseStatus::passed) << n_visible;
  }
  facts[5]["device.pci"] = facts[4]["device.pci"];
  const CaseResult lacks = required(facts);
  EXPECT_EQ(lacks.status, CaseStatus::failed);
  ASSERT_EQ(lacks.blamed.size(), 1U);
  EXPECT_EQ(lacks.blamed[0].host, "c");
  EXPECT_THAT(lacks.reason, HasSubstr("1 devices, required is 2"));
}

std::vector<std::string> placement_notes(const std::vector<std::string>& on,
                                         const std::vector<Facts>& facts) {
  CaseResult result;
  HostComparison(on, facts).note_placement(result);
  return result.notes;
}

TEST(Preflight, D19_ThreadsOnFewerCoresAreNoted) {
  std::vector<Facts> facts(2);
  facts[0] = {{"rank.binding", "0-3"}, {"rank.threads", "4"}};
  facts[1] = {{"rank.binding", "4,6-7 (unbound)"}, {"rank.threads", "4"}};
  EXPECT_THAT(placement_notes({"a", "a"}, facts),
              ElementsAre("rank 1 (a): 4 threads on 3 cores (4,6-7 (unbound))"));
}

TEST(Preflight, D29_NeighboursOnSeveralHostsAreNoted) {
  const std::vector<Facts> facts(4);
  EXPECT_THAT(placement_notes({"a", "a", "b", "b"}, facts), IsEmpty());
  EXPECT_THAT(placement_notes({"a", "b", "c", "d"}, facts), IsEmpty());
  EXPECT_THAT(placement_notes({"a", "b", "a", "b"}, facts),
              ElementsAre(HasSubstr("ranks 0 and 1 are on hosts a and b: tensor-parallel groups of "
                                    "2 would cross hosts")));
}

TEST(Preflight, NearestNicsAreShown) {
  EXPECT_THAT(placement_notes(hosts, like_facts()),
              ElementsAre("NICs nearest to the devices of a: rank 0: mlx5_0; rank 1: mlx5_1"));
}

TEST(Preflight, CoresInABinding) {
  EXPECT_EQ(cores_in("0"), 1);
  EXPECT_EQ(cores_in("0-3"), 4);
  EXPECT_EQ(cores_in("0-1,4,6-7 (unbound)"), 5);
  EXPECT_FALSE(cores_in(""));
  EXPECT_FALSE(cores_in("all"));
  EXPECT_FALSE(cores_in("3-1"));
}

std::vector<Figure> read_figures(const AcceptanceProfile& profile,
                                 const std::vector<std::vector<double>>& samples) {
  std::vector<Figure> figures;
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    figures.push_back(judged(profile, read_key(), samples[rank], {static_cast<int>(rank)}));
  }
  return figures;
}

TEST(Devices, AnOutlierIsFoundWithItsCohort) {
  const auto slow =
      slow_devices(read_figures({}, {{60, 61, 62}, {61, 62, 61}, {31, 30, 32}, {60, 60, 60}}), 0.1);
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].rank, 2U);
  EXPECT_FALSE(slow[0].misses_gate);
  EXPECT_DOUBLE_EQ(slow[0].cohort.value_or(0.0), 60.5);
}

// Half of its time a device was disturbed: it can read as fast as the others.
TEST(Devices, ADisturbanceIsNoOutlier) {
  EXPECT_THAT(
      slow_devices(read_figures({}, {{60, 61, 62}, {61, 62, 61}, {31, 30, 61}, {60, 60, 60}}), 0.1),
      IsEmpty());
}

TEST(Devices, TwoHaveNoCohortAndEachHasItsGate) {
  AcceptanceProfile profile;
  EXPECT_THAT(slow_devices(read_figures(profile, {{60}, {30}}), 0.1), IsEmpty());
  profile.expectations = {
      {.key = read_key(), .expected = 60.0, .tolerance = 0.1, .source = "test", .where = "test:1"}};
  const auto slow = slow_devices(read_figures(profile, {{60}, {30}}), 0.1);
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].rank, 1U);
  EXPECT_TRUE(slow[0].misses_gate);
  EXPECT_FALSE(slow[0].cohort);
}

}  // namespace
}  // namespace testbed
