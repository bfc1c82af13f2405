// An acceptance as JSON, read back from it, and as a Prometheus textfile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <clocale>
#include <filesystem>
#include <fstream>
#include <locale>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "kernels/base/errors.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "tests/unit/acceptance_report_support.hpp"

namespace testbed {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class AcceptanceFile : public testing::Test {
 protected:
  AcceptanceFile()
      : folder_(std::filesystem::temp_directory_path() /
                ("acceptance_report_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~AcceptanceFile() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& content) const {
    const std::string path = folder_ / "last.json";
    std::ofstream(path) << content;
    return path;
  }
  // What reading says of a file that is no acceptance.
  std::string refusal(const std::string& content) const {
    try {
      read_acceptance(file(content));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "read";
  }

 private:
  std::filesystem::path folder_;
};

// A comma as the decimal point, as in de_DE, whether or not that locale is installed.
class CommaNumbers : public std::numpunct<char> {
 protected:
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(AcceptanceJson, has_all_of_it) {
  const json got = json::parse(to_json(sample_acceptance()));
  EXPECT_EQ(got.at("schema"), "testbed-acceptance-1");
  EXPECT_EQ(got.at("verdict"), "corruption");
  EXPECT_EQ(got.at("exit_code"), 4);
  EXPECT_EQ(got.at("reasons").size(), 2);
  EXPECT_EQ(got.at("hosts").at(3), "node-b");
  EXPECT_EQ(got.at("coverage").at("cases").at("soak"), json({{"run", 0}, {"planned", 1}}));
  EXPECT_EQ(got.at("coverage").at("gates_not_met_by_a_figure").size(), 1);
  EXPECT_EQ(got.at("drift").at(0).at("change"), -0.5);
  EXPECT_EQ(got.at("profile").at("expectations").at(0).at("key").at("bytes"), 8388608);
  EXPECT_EQ(got.at("profile").at("requires").at("ecc"), nullptr);
  EXPECT_EQ(got.at("fingerprint").at("version"), "0.1.0");
  const json& links = got.at("cases").at(2);
  EXPECT_EQ(links.at("status"), "failed");
  EXPECT_EQ(links.at("attempts"), 2);
  EXPECT_EQ(links.at("blamed").at(0).at("kind"), "link");
  EXPECT_EQ(links.at("blamed").at(0).at("ranks"), json({0, 2}));
  const json& slow = links.at("figures").at(1);
  EXPECT_EQ(slow.at("median"), 1.2);
  EXPECT_EQ(slow.at("worst"), 1.1);
  EXPECT_EQ(slow.at("gate").at("passed"), false);
  EXPECT_DOUBLE_EQ(slow.at("gate").at("limit").get<double>(), 3.8);
  EXPECT_EQ(slow.at("gate").at("source"), "probe of 2026-11-29");
  EXPECT_FALSE(slow.at("key").contains("op"));
  EXPECT_EQ(links.at("matrices").at(0).at("values").at(2).at(0), 1.2);
  EXPECT_EQ(links.at("matrices").at(0).at("values").at(0).at(0), nullptr);
}

// What is not finite is null, and counts for nothing; control and broken bytes do no harm (D25).
TEST(AcceptanceJson, is_strict) {
  const std::string text = to_json(sample_acceptance());
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  const json got = json::parse(text);
  const json& figure = got.at("cases").at(3).at("figures").at(0);
  EXPECT_EQ(figure.at("samples"), json({900.0, nullptr, 950.0}));
  EXPECT_EQ(figure.at("median"), 925.0);
  EXPECT_EQ(figure.at("worst"), 950.0);
  EXPECT_EQ(got.at("cases").at(2).at("matrices").at(0).at("values").at(2).at(3), nullptr);
}

TEST(AcceptanceJson, knows_no_figure_of_no_sample) {
  Acceptance acceptance = sample_acceptance();
  acceptance.cases[1].figures[0].samples.clear();
  const json got = json::parse(to_json(acceptance));
  EXPECT_EQ(got.at("cases").at(1).at("figures").at(0).at("median"), nullptr);
  // Of one sample median and worst are that sample (D35).
  EXPECT_EQ(got.at("cases").at(1).at("figures").at(3).at("median"), 31.0);
  EXPECT_EQ(got.at("cases").at(1).at("figures").at(3).at("worst"), 31.0);
}

TEST(AcceptanceReports, do_not_depend_on_the_locale) {
  const Acceptance acceptance = sample_acceptance();
  const auto all = [&] {
    return to_json(acceptance) + to_junit(acceptance) + to_table(acceptance) +
           to_prometheus(acceptance);
  };
  const std::string before = all();
  const std::locale old = std::locale::global(std::locale(std::locale(), new CommaNumbers));
  std::setlocale(LC_ALL, "de_DE.UTF-8");
  const std::string after = all();
  std::setlocale(LC_ALL, "C");
  std::locale::global(old);
  EXPECT_EQ(before, after);
}

TEST_F(AcceptanceFile, is_read_back_for_drift) {
  const Acceptance wrote = sample_acceptance();
  const Acceptance read = read_acceptance(file(to_json(wrote)));
  EXPECT_EQ(read.verdict, wrote.verdict);
  EXPECT_TRUE(read.finished);
  EXPECT_EQ(read.world_size, 4);
  EXPECT_EQ(read.hosts, wrote.hosts);
  EXPECT_EQ(read.devices, wrote.devices);
  EXPECT_EQ(read.began, wrote.began);
  EXPECT_EQ(read.profile.name, wrote.profile.name);
  ASSERT_EQ(read.cases.size(), wrote.cases.size());
  for (size_t i = 0; i < read.cases.size(); ++i) {
    EXPECT_EQ(read.cases[i].name, wrote.cases[i].name);
    EXPECT_EQ(read.cases[i].status, wrote.cases[i].status);
    ASSERT_EQ(read.cases[i].figures.size(), wrote.cases[i].figures.size());
    for (size_t j = 0; j < read.cases[i].figures.size(); ++j) {
      EXPECT_EQ(read.cases[i].figures[j].key, wrote.cases[i].figures[j].key);
      EXPECT_EQ(read.cases[i].figures[j].ranks, wrote.cases[i].figures[j].ranks);
    }
  }
  EXPECT_EQ(read.cases[2].figures[1].samples, (std::vector<double>{1.2, 1.1, 1.3}));
  EXPECT_EQ(read.cases[3].figures[0].samples, (std::vector<double>{900.0, 950.0}));
}

TEST_F(AcceptanceFile, that_is_none_is_refused_by_name) {
  EXPECT_THAT(refusal("{}"), HasSubstr("last.json"));
  EXPECT_THAT(refusal("{}"), HasSubstr("no acceptance"));
  EXPECT_THAT(refusal("{\"schema\": \"testbed-record-1\"}"), HasSubstr("testbed-record-1"));
  EXPECT_THAT(refusal("[1"), HasSubstr("last.json"));
  for (const char* field : {"verdict", "finished", "hosts", "world_size", "cases", "profile"}) {
    json broken = json::parse(to_json(sample_acceptance()));
    broken.erase(field);
    EXPECT_THAT(refusal(broken.dump()), HasSubstr(field));
  }
  json broken = json::parse(to_json(sample_acceptance()));
  broken.at("cases").at(2).at("figures").at(1).at("samples").at(0) = "1.2";
  EXPECT_THAT(refusal(broken.dump()), HasSubstr("links/all pairs 8 MiB"));
  EXPECT_THROW(read_acceptance("/nowhere/last.json"), ConfigError);
}

// The text format's grammar as node_exporter's collector takes it: a metric's lines together, HELP
// and TYPE first, no series twice, no timestamps.
void expect_textfile(const std::string& text) {
  const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+");
  const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) gauge");
  const std::string label = R"([a-zA-Z_][a-zA-Z0-9_]*="(?:\\[\\"n]|[^"\\])+")";
  const std::regex sample("([a-zA-Z_:][a-zA-Z0-9_:]*)(\\{" + label + "(?:," + label +
                          ")*\\})? -?[0-9.]+(?:e[-+]?[0-9]+)?");
  ASSERT_TRUE(text.ends_with("\n"));
  std::istringstream in(text);
  std::set<std::string> seen_metrics;
  std::set<std::string> seen_series;
  std::string metric;
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_match(line, match, help)) {
      metric = match[1];
      EXPECT_TRUE(seen_metrics.insert(metric).second) << "apart: " << line;
    } else if (std::regex_match(line, match, type) || std::regex_match(line, match, sample)) {
      EXPECT_EQ(match[1], metric) << line;
      const bool is_new = seen_series.insert(line.substr(0, line.rfind(' '))).second;
      EXPECT_TRUE(is_new || line[0] == '#') << "twice: " << line;
    } else {
      ADD_FAILURE() << "no line of a textfile: " << line;
    }
  }
}

TEST(AcceptancePrometheus, is_a_textfile_in_base_units) {
  const std::string text = to_prometheus(sample_acceptance());
  expect_textfile(text);
  EXPECT_THAT(text, HasSubstr("testbed_acceptance_verdict{verdict=\"corruption\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("testbed_acceptance_verdict{verdict=\"accept\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("testbed_acceptance_start_time_seconds 1796035436\n"));
  EXPECT_THAT(
      text,
      HasSubstr("testbed_acceptance_link_one_way_bytes_per_second{stage=\"links\",case=\"all "
                "pairs 8 MiB\",bytes=\"8388608\",scope=\"between-hosts\",rank=\"0\",host="
                "\"node-a\",peer=\"2\",peer_host=\"node-b\",statistic=\"median\"} 1200000000\n"));
  EXPECT_THAT(text, HasSubstr("status=\"flaky\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("statistic=\"worst\"} 0.00095\n"));  // 950 us
  EXPECT_THAT(text, HasSubstr("testbed_acceptance_gate_passed{figure=\"link.one_way_gb_s\""));
}

TEST(AcceptancePrometheus, escapes_and_repeats) {
  Acceptance acceptance = sample_acceptance();
  acceptance.cases[0].name = "a \"b\" \\ \n \x1b[0m";
  acceptance.cases[1].figures.push_back(acceptance.cases[1].figures[0]);
  acceptance.seconds = std::numeric_limits<double>::infinity();
  const std::string text = to_prometheus(acceptance);
  expect_textfile(text);
  EXPECT_THAT(text, HasSubstr(R"(case="a \"b\" \\ \\x0a \\x1b[0m")"));
  EXPECT_THAT(text, HasSubstr("repeat=\"2\""));
  EXPECT_THAT(text, Not(HasSubstr("testbed_acceptance_duration_seconds")));
}

}  // namespace
}  // namespace testbed
