// AcceptanceProfile in TOML: what is read, what is refused and where, and the presets.
#include "runtime/config/acceptance_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kernels/base/errors.hpp"
#include "runtime/accept/figures.hpp"
#include "runtime/config/command_line.hpp"
#include "runtime/config/presets.hpp"

namespace testbed {
namespace {

using testing::HasSubstr;

constexpr const char* head = R"(name = "p"
device = "cuda"
description = "d"
latency_up_to_bytes = 32768
bandwidth_from_bytes = 16777216
)";

class AcceptanceConfig : public testing::Test {
 protected:
  AcceptanceProfile read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_acceptance_profile(path_);
  }
  std::string mistake(const std::string& text) {
    try {
      read(text);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "none";
  }
  // With one [[expect]], whose first key is on line 8.
  std::string mistake_in(const std::string& expect) {
    return mistake(std::string(head) + "\n[[expect]]\n" + expect);
  }
  std::string path_ = testing::TempDir() + "acceptance_config_test.toml";
};

TEST_F(AcceptanceConfig, a_profile_is_read) {
  const AcceptanceProfile profile = read(std::string(head) + R"(cohort_tolerance = 0.2
flaky_allowed = 2
[requires]
devices_per_host = 8
device_name = "H100"
dev_shm_gb = 1
ecc = true
[[expect]]
figure = "collective.busbw_gb_s"
op = "all_reduce"
ranks = 8
scope = "within-host"
algorithm = "nvls"
by_bytes = [[16777216, 240], [33554432, 293.5]]
tolerance = 0.1
source = "a table"
)");
  EXPECT_EQ(profile.device, "cuda");
  EXPECT_FALSE(profile.tried_on_hardware);
  EXPECT_EQ(profile.cohort_tolerance, 0.2);
  EXPECT_EQ(profile.flaky_allowed, 2);
  EXPECT_EQ(profile.requirements.devices_per_host, 8);
  EXPECT_EQ(profile.requirements.ecc, true);
  EXPECT_FALSE(profile.requirements.clock_mhz.has_value());
  ASSERT_EQ(profile.expectations.size(), 2U);
  const Expectation& second = profile.expectations[1];
  EXPECT_EQ(second.key.bytes, 33554432);
  EXPECT_EQ(second.key.algorithm, "nvls");
  EXPECT_EQ(second.expected, 293.5);
  EXPECT_EQ(second.source, "a table");
  EXPECT_THAT(second.where, HasSubstr("acceptance_config_test.toml:14"));
}

TEST_F(AcceptanceConfig, what_is_written_reads_back_equal) {
  const AcceptanceProfile profile = read_acceptance_profile("h100-nvlink");
  AcceptanceProfile again = read(acceptance_toml(profile));
  EXPECT_EQ(acceptance_toml(again), acceptance_toml(profile));
  ASSERT_EQ(again.expectations.size(), profile.expectations.size());
  for (size_t i = 0; i < again.expectations.size(); ++i) {
    EXPECT_EQ(again.expectations[i].key, profile.expectations[i].key);
    EXPECT_EQ(again.expectations[i].expected, profile.expectations[i].expected);
  }
}

TEST_F(AcceptanceConfig, every_figure_can_be_expected) {
  for (const FigureKind& kind : figure_kinds) {
    const std::string figure(kind.name);
    const bool has_size = figure.starts_with("link.") || figure.starts_with("collective.");
    const std::string size = figure == "collective.us" ? "bytes = 512\n" : "bytes = 16777216\n";
    const AcceptanceProfile profile =
        read(std::string(head) + "[[expect]]\nfigure = \"" + figure + "\"\n" +
             (has_size ? size : "") + "expected = 1\ntolerance = 0.1\nsource = \"s\"\n");
    ASSERT_EQ(profile.expectations.size(), 1U);
    EXPECT_EQ(profile.expectations.front().key.figure, figure);
  }
}

TEST_F(AcceptanceConfig, an_unknown_key_or_figure_is_refused_with_its_line) {
  EXPECT_THAT(mistake(std::string(head) + "cohort_tolerence = 0.1\n"),
              HasSubstr("acceptance_config_test.toml:6: "));
  EXPECT_THAT(mistake_in("figure = \"device.read\"\nexpected = 1\ntolerance = 0.1\nsource = \"s\""),
              HasSubstr(":8: unknown figure \"device.read\"; figures: device.read_gb_s"));
  EXPECT_THAT(mistake("name = \"p\"\ndevice = \"sim\"\ndescription = \"d\""),
              HasSubstr(":2: device \"sim\" is not one of cpu, cuda"));
}

TEST_F(AcceptanceConfig, D33_gates_are_per_size_and_on_their_side_of_the_plateau) {
  const std::string rest = "\nexpected = 1\ntolerance = 0.1\nsource = \"s\"";
  EXPECT_THAT(
      mistake_in("figure = \"collective.busbw_gb_s\"\nbytes = 8388608" + rest),
      HasSubstr(":9: collective.busbw_gb_s of 8388608 bytes is below bandwidth_from_bytes"));
  EXPECT_THAT(mistake_in("figure = \"collective.us\"\nbytes = 65536" + rest),
              HasSubstr(":9: collective.us of 65536 bytes is above latency_up_to_bytes"));
  EXPECT_THAT(mistake_in("figure = \"collective.us\"" + rest), HasSubstr("held size by size"));
  EXPECT_EQ(mistake_in("figure = \"collective.us\"\nbytes = 32768" + rest), "none");
}

TEST_F(AcceptanceConfig, D35_nothing_is_expected_of_the_bus_of_one_rank) {
  EXPECT_THAT(mistake_in("figure = \"collective.busbw_gb_s\"\nranks = 1\nbytes = 16777216\n"
                         "expected = 1\ntolerance = 0.1\nsource = \"s\""),
              HasSubstr(":9: one rank has no bus bandwidth"));
}

TEST_F(AcceptanceConfig, an_expectation_needs_a_source_and_a_tolerance_and_comes_once) {
  const std::string read = "figure = \"device.read_gb_s\"\nexpected = 1\n";
  EXPECT_THAT(mistake_in(read + "tolerance = 0.1"), HasSubstr("source is missing"));
  EXPECT_THAT(mistake_in(read + "source = \"s\""), HasSubstr("tolerance"));
  EXPECT_NE(mistake_in(read + "tolerance = 1.0\nsource = \"s\""), "none");
  const std::string whole = read + "tolerance = 0.1\nsource = \"s\"\n";
  EXPECT_EQ(mistake_in(whole), "none");
  EXPECT_THAT(mistake_in(whole + "[[expect]]\n" + whole), HasSubstr("the same figure is expected"));
  EXPECT_THAT(mistake_in("ranks = 2\n" + whole), HasSubstr("is not told apart by ranks"));
}

TEST(AcceptanceProfiles, all_presets_are_read_and_no_GPU_has_been_tried) {
  const std::set<std::string> names = preset_names("acceptance");
  EXPECT_EQ(
      names,
      (std::set<std::string>{"a100-nvlink", "cpu-host", "h100-ndr", "h100-nvlink", "l40s-pcie"}));
  for (const std::string& name : names) {
    const AcceptanceProfile profile = read_acceptance_profile(name);
    EXPECT_EQ(profile.name, name);
    EXPECT_EQ(profile.tried_on_hardware, profile.device == "cpu") << name;
    EXPECT_EQ(profile.expectations.empty(), profile.device == "cpu") << name;
    for (const Expectation& expectation : profile.expectations) {
      EXPECT_FALSE(expectation.source.empty()) << expectation.where;
    }
  }
}

AcceptConfig parsed(const std::vector<std::string>& args) {
  return std::get<AcceptConfig>(parse_command_line(args));
}

TEST(AcceptCommandLine, defaults_and_what_quick_changes) {
  const AcceptConfig usual = parsed({"accept"});
  EXPECT_EQ(usual.folder, "acceptance");
  EXPECT_EQ(usual.repeats, 5);
  EXPECT_EQ(usual.most_bytes, int64_t{1} << 30);
  const AcceptConfig quick = parsed({"accept", "--quick"});
  EXPECT_EQ(quick.repeats, 3);
  EXPECT_EQ(quick.most_bytes, int64_t{16} << 20);
  EXPECT_EQ(parsed({"accept", "--quick", "--max-bytes", "512"}).most_bytes, 512);
}

TEST(AcceptCommandLine, options_are_read) {
  const AcceptConfig config = parsed({"accept",
                                      "--profile",
                                      "p.toml",
                                      "--stage",
                                      "links,device",
                                      "--case",
                                      "16 MiB",
                                      "--baseline",
                                      "verdict.json",
                                      "--model",
                                      "m",
                                      "--ttft-target",
                                      "100",
                                      "--soak",
                                      "60",
                                      "--inject",
                                      "delay:rank=1,us=5",
                                      "--output",
                                      "f",
                                      "--timeout",
                                      "9"});
  EXPECT_EQ(config.profile, "p.toml");
  EXPECT_THAT(config.stages, testing::ElementsAre("links", "device"));
  EXPECT_EQ(config.only, "16 MiB");
  EXPECT_EQ(config.baseline, "verdict.json");
  EXPECT_EQ(config.ttft_target_ms, 100.0);
  EXPECT_EQ(config.soak_s, 60.0);
  EXPECT_EQ(config.inject.size(), 1U);
  EXPECT_EQ(config.folder, "f");
  EXPECT_EQ(config.timeout_s, 9.0);
}

TEST(AcceptCommandLine, what_makes_no_sense_is_refused) {
  EXPECT_THROW(parsed({"accept", "--device", "sim"}), ConfigError);
  EXPECT_THROW(parsed({"accept", "--stage", "linkz"}), ConfigError);
  EXPECT_THROW(parsed({"accept", "--list", "--explain", "x"}), ConfigError);
  EXPECT_THROW(parsed({"accept", "--repeats", "0"}), ConfigError);
}

TEST(ProbeCommandLine, an_acceptance_profile_is_measured_in_the_place_of_curves) {
  const std::vector<std::string> args{"probe", "--acceptance", "p.toml"};
  EXPECT_EQ(std::get<ProbeConfig>(parse_command_line(args)).acceptance, "p.toml");
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--json", "c.json"}, {"--device", "sim"}, {"--toml", "c.toml"}}) {
    std::vector<std::string> all = args;
    all.insert(all.end(), more.begin(), more.end());
    EXPECT_THROW(parse_command_line(all), ConfigError) << more.front();
  }
}

}  // namespace
}  // namespace testbed
