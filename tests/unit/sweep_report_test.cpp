// A sweep as table, JSON and CSV.
#include "runtime/report/sweep_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/report/sweep_chart.hpp"
#include "tests/unit/sweep_test_support.hpp"

namespace testbed {
namespace {

using test::result_of;
using test::with_zero_latency;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// tp 1 is refused, tp 2 and tp 4 run, with a crossing at 4 by latency.
Sweep example() {
  Sweep sweep;
  sweep.config.clusters = {"c,1"};
  sweep.config.base.output.quiet = true;
  sweep.model = "toy";
  sweep.n_layers = 2;
  sweep.descriptions["c,1"] = "two boards";
  SweepResult refused{.point = {.cluster = "c,1", .tp = 1}};
  refused.refused = "weights of 141 GB do not fit 80 GB; tp 2 would";
  SweepResult two = result_of({.cluster = "c,1", .tp = 2}, {.memory_ms = 4, .interconnect_ms = 1});
  SweepResult four = with_zero_latency(
      result_of({.cluster = "c,1", .tp = 4}, {.memory_ms = 2, .interconnect_ms = 3}),
      {.memory_ms = 2, .interconnect_ms = 0.5});
  CollectiveRecord all_reduce;
  all_reduce.op = "all_reduce";
  all_reduce.axis = "tp";
  all_reduce.algorithm = "two-shot";
  all_reduce.per_step = 161;
  all_reduce.wire_us.median = 12.25;
  all_reduce.exposed_us = 1972.25;
  four.record->phases[0].collectives = {all_reduce};
  four.warnings = {"tp 4 crosses nodes of 2"};
  sweep.results = {refused, two, four};
  sweep.crossovers = find_crossovers(sweep.results);
  return sweep;
}

TEST(SweepTable, says_simulated_first_and_shows_every_point) {
  const std::string text = sweep_table(example());
  EXPECT_THAT(text, StartsWith("SIMULATED: toy, 2 layers"));
  EXPECT_THAT(text, HasSubstr("\n2 of 3 points run; 32 generated tokens a request\n"));
  EXPECT_THAT(text, HasSubstr("c,1: two boards; batch 1, context 0, prompt 512"));
  EXPECT_THAT(text, HasSubstr("- tp 1 x pp 1 x dp 1 does not run: weights of 141 GB"));
  EXPECT_THAT(text, HasSubstr("! tp 4 x pp 1 x dp 1: tp 4 crosses nodes of 2"));
  EXPECT_THAT(text, HasSubstr("two-shot           12.2     161"));
  EXPECT_THAT(text, HasSubstr("2.00 \u00d7")) << "5 ms / 2.5 ms";
  EXPECT_THAT(text, HasSubstr("from tp 4 (latency)"));
  EXPECT_THAT(text, HasSubstr("decode: at tp 4 x pp 1 x dp 1 links take 3.00 ms a step and"));
  EXPECT_THAT(text, HasSubstr("with zero latency 0.500 and 2.00 ms, so latency is the cause"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    });
    EXPECT_LE(columns, 100) << line;
  }
}

TEST(SweepTable, bars_have_the_length_of_their_step) {
  const Shares shares{
      .weights = 0.5, .kv = 0.1, .compute = 0.1, .interconnect = 0.2, .overhead = 0.1};
  EXPECT_EQ(table::step_bar(shares, 10), "WWWWWK##Co");
  EXPECT_EQ(table::step_bar(shares, 2), "W#");
  EXPECT_EQ(table::step_bar({}, 10), "");
  const std::string text = sweep_table(example());
  EXPECT_THAT(
      text,
      HasSubstr(std::string(38, 'W') + std::string(13, 'K') + std::string(13, '#') + " 5.00 ms"));
}

TEST(SweepJson, is_strict_and_as_the_interface_says) {
  Sweep sweep = example();
  sweep.results[1].record->timing.decode_tokens_per_s = {{std::numeric_limits<double>::infinity()}};
  const std::string text = sweep_json(sweep);
  EXPECT_THAT(text, Not(HasSubstr("NaN")));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["schema"], "testbed-sweep-1");
  EXPECT_EQ(json["simulated"], true);
  ASSERT_EQ(json["points"].size(), 2U);
  EXPECT_EQ(json["points"][0]["schema"], RunRecord::schema);
  EXPECT_EQ(json["points"][0]["sweep"]["tp"], 2);
  EXPECT_TRUE(json["points"][0]["sweep"]["tokens_per_s_per_device"]["decode"].is_null());
  EXPECT_EQ(json["points"][1]["sweep"]["warnings"][0], "tp 4 crosses nodes of 2");
  EXPECT_EQ(json["refused"][0]["tp"], 1);
  EXPECT_THAT(json["refused"][0]["reason"].get<std::string>(), StartsWith("weights of 141 GB"));
  const auto& crossover = json["crossover"]["c,1"]["decode"];
  EXPECT_EQ(crossover["tp"], 4);
  EXPECT_EQ(crossover["cause"], "latency");
  EXPECT_EQ(crossover["at_tp"]["interconnect_ms"], 3.0);
  EXPECT_EQ(json["crossovers"][0]["cluster"], "c,1");
  EXPECT_EQ(json["what_if"][0], nlohmann::json::object());
  const auto& zero_latency = json["what_if"][1]["decode"]["zero_latency"];
  EXPECT_EQ(zero_latency["step_ms"], 2.5);
  EXPECT_EQ(zero_latency["speedup"], 2.0);
  EXPECT_EQ(json["best"], nlohmann::json::array());
}

TEST(SweepJson, a_cluster_without_a_crossing_has_null) {
  Sweep sweep = example();
  sweep.results.pop_back();
  sweep.crossovers = find_crossovers(sweep.results);
  const auto json = nlohmann::json::parse(sweep_json(sweep));
  EXPECT_TRUE(json["crossover"]["c,1"]["decode"]["tp"].is_null());
  EXPECT_TRUE(json["crossover"]["c,1"]["decode"]["cause"].is_null());
  EXPECT_EQ(json["crossover"]["c,1"]["decode"]["highest_tp"], 2);
}

TEST(SweepJson, best_names_the_split_and_its_front) {
  Sweep sweep = example();
  sweep.config.best = SweepConfig::Best::throughput;
  sweep.best = find_best(sweep.results, sweep.config.best);
  const auto json = nlohmann::json::parse(sweep_json(sweep));
  EXPECT_EQ(json["best"][0]["best"]["tp"], 2);
  EXPECT_EQ(json["best"][0]["best"]["tokens_per_s_per_device"], 100.0);
  EXPECT_EQ(json["best"][0]["pareto"].size(), 1U) << "both take 5 ms";
  EXPECT_THAT(sweep_table(sweep), HasSubstr("Best of c,1"));
}

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

TEST(SweepCsv, has_one_line_per_point_and_phase_under_one_header) {
  const std::string text = sweep_csv(example());
  std::vector<std::vector<std::string>> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    ASSERT_EQ(line.back(), '\r');
    line.pop_back();
    lines.push_back(fields(line));
  }
  ASSERT_EQ(lines.size(), 4U);
  for (const auto& line : lines) EXPECT_EQ(line.size(), lines[0].size());
  const auto cell = [&](size_t line, const std::string& name) {
    const auto at = std::find(lines[0].begin(), lines[0].end(), name);
    EXPECT_NE(at, lines[0].end()) << name;
    return lines[line][static_cast<size_t>(at - lines[0].begin())];
  };
  EXPECT_EQ(cell(1, "cluster"), "\"c,1\"");
  EXPECT_EQ(cell(1, "step_ms"), "");
  EXPECT_THAT(cell(1, "refused"), HasSubstr("141 GB"));
  EXPECT_EQ(cell(3, "phase"), "decode");
  EXPECT_EQ(cell(3, "tp_degree"), "4");
  EXPECT_EQ(cell(3, "step_ms"), "5");
  EXPECT_EQ(cell(3, "weights_ms"), "1.5");
  EXPECT_EQ(cell(3, "kv_ms"), "0.5");
  EXPECT_EQ(cell(3, "interconnect_ms"), "3");
  EXPECT_EQ(cell(3, "all_reduce_algorithm"), "two-shot");
  EXPECT_EQ(cell(3, "all_reduce_us"), "12.25");
  EXPECT_EQ(cell(3, "speedup_zero_latency"), "2");
  EXPECT_EQ(cell(3, "speedup_free_links"), "");
  EXPECT_EQ(cell(2, "all_reduce_us"), "");
}

}  // namespace
}  // namespace testbed
