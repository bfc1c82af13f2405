// An acceptance on the terminal: the summary, heat maps, --list and --explain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "runtime/report/acceptance_heat_map.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "tests/unit/acceptance_report_support.hpp"

namespace testbed {
namespace {

using acceptance_report::add_heat_map;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string heat_map(const RankMatrix& matrix, const std::vector<std::string>& hosts = {}) {
  table::Lines out;
  add_heat_map(out, matrix, hosts);
  return out.take();
}

// n ranks at 100 GB/s, nothing on the diagonal.
RankMatrix uniform(size_t n) {
  RankMatrix matrix{.title = "one way", .unit = "GB/s", .values = {}};
  matrix.values.assign(n, std::vector<std::optional<double>>(n, 100.0));
  for (size_t i = 0; i < n; ++i) matrix.values[i][i].reset();
  return matrix;
}

size_t widest(const std::string& text) {
  size_t columns = 0;
  for (const std::string& line : lines_of(text)) columns = std::max(columns, line.size());
  return columns;
}

TEST(AcceptanceTable, opens_with_the_verdict_and_its_reasons) {
  const std::vector<std::string> lines = lines_of(to_table(sample_acceptance()));
  EXPECT_EQ(lines[0], "acceptance: CORRUPTION (exit code 4)");
  EXPECT_THAT(lines[1], HasSubstr("offset 4096 of rank 2"));
  EXPECT_THAT(lines[2], HasSubstr("link 0-2 is too slow"));
  EXPECT_THAT(lines[3], HasSubstr("! FAULT INJECTED: slow-link \\x1b[31m0-2"));
  EXPECT_THAT(lines[4], HasSubstr("4 cpu ranks on 2 hosts"));
  Acceptance unfinished = sample_acceptance();
  unfinished.finished = false;
  EXPECT_THAT(to_table(unfinished), StartsWith("UNFINISHED acceptance"));
}

TEST(AcceptanceTable, has_counts_figures_blame_coverage_and_drift) {
  const std::string text = to_table(sample_acceptance());
  for (const char* part :
       {"collectives       2 of 2       0       1      1      0        0   0.500 s",
        "soak              0 of 1       0       0      0      0        1",
        "all pairs 8 MiB: failed (2 attempts): link 0-2",
        "blamed: link of rank 0 (node-a) - rank 2 (node-b): 1.2 GB/s, the others 4.1",
        "1.20     1.10 GB/s       3  MISSED >= 3.80 (4.00 - 5 %)",
        "2.65     1.10 GB/s       6  1 of 2 MISSED >= 3.80 (4.00 - 5 %)",
        "passed <= 1050 (1000 + 5 %)",
        "all_reduce 4 ranks 1 MiB: failed, WRONG VALUES",
        "coverage: 6 of 7 cases run; 4 of 8 figures held against a gate",
        "model.tpot_ms llama3-8b tp 4",
        "4 gates from: probe of 2026-11-29",
        "drift: 1 of 1 figures",
        "62.0 -> 31.0 (-50.0 %, worse)",
        "60 s: skipped: --soak was not given"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_LE(widest(text), table::max_columns);
}

// No figure is n/a and not 0, one sample is its own median and worst (D35).
TEST(AcceptanceTable, of_none_and_of_one_sample) {
  Acceptance acceptance = sample_acceptance();
  acceptance.cases[1].figures.resize(1);
  EXPECT_THAT(to_table(acceptance), HasSubstr("62.0     62.0 GB/s       1  no gate"));
  acceptance.cases[1].figures[0].samples.clear();
  EXPECT_THAT(to_table(acceptance), HasSubstr("n/a      n/a GB/s       0  no gate"));
}

TEST(HeatMap, of_a_few_ranks_has_numbers) {
  RankMatrix matrix = uniform(4);
  matrix.values[0][2] = 30.0;
  matrix.values[3][1].reset();
  EXPECT_EQ(heat_map(matrix, {"a", "a", "b", "b"}),
            "    one way\n"
            "    to       0       1  |     2       3\n"
            "     0         \\   100 .|  30.0 +   100 .\n"
            "     1     100 .       \\|   100 .   100 .\n"
            "        ---------------------------------\n"
            "     2     100 .   100 .|       \\   100 .\n"
            "     3     100 .       ?|   100 .       \\\n"
            "    GB/s at least:  . 90.0  : 67.5  - 50.6  = 38.0  + 28.5  * 21.4  x 16.0  % 12.0  # "
            "9.01  @ less\n"
            "    best 100 GB/s (rank 0 to 1), worst 30.0 GB/s (rank 0 to 2); ? not measured: 1\n");
}

TEST(HeatMap, of_many_ranks_has_a_character_each) {
  RankMatrix matrix = uniform(64);
  matrix.values[5][40] = 1.0;
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 64; ++rank) hosts.push_back("host" + std::to_string(rank / 8));
  const std::string text = heat_map(matrix, hosts);
  EXPECT_LE(widest(text), table::max_columns);
  const std::vector<std::string> lines = lines_of(text);
  EXPECT_EQ(lines[1],
            "                |  111111|11112222|22222233|33333333|44444444|44555555|55556666");
  EXPECT_EQ(lines[8],
            "     5  .....\\..|........|........|........|........|@.......|........|........");
  EXPECT_THAT(text, HasSubstr("worst 1.00 GB/s (rank 5 to 40)"));
}

TEST(HeatMap, of_every_size_fits_and_shows_one_bad_cell) {
  for (size_t n = 2; n <= 300; n += n < 70 ? 1 : 23) {
    RankMatrix matrix = uniform(n);
    matrix.values[n - 1][0] = 1.0;
    const std::string text = heat_map(matrix, std::vector<std::string>(n, "one"));
    EXPECT_LE(widest(text), table::max_columns) << n;
    std::string map = text.substr(0, text.find("at least:"));
    EXPECT_EQ(std::count(map.begin(), map.end(), '@'), 1) << text;
  }
}

TEST(HeatMap, of_times_is_the_other_way_round) {
  RankMatrix matrix = uniform(3);
  matrix.more_is_better = false;
  matrix.unit = "us";
  matrix.values[1][2] = 250.0;
  const std::string text = heat_map(matrix);
  EXPECT_THAT(text, HasSubstr("250 ="));  // 0.4 of the best, from 0.38 on
  EXPECT_THAT(text, HasSubstr("us at most:  . 111"));
  EXPECT_THAT(text, HasSubstr("worst 250 us (rank 1 to 2)"));
}

TEST(HeatMap, of_nothing_says_so) {
  RankMatrix matrix = uniform(2);
  matrix.values[0][1] = std::numeric_limits<double>::quiet_NaN();
  matrix.values[1][0].reset();
  EXPECT_THAT(heat_map(matrix), HasSubstr("nothing was measured"));
  matrix.values[0][1] = 0.0;  // a link that carried nothing has a rate
  EXPECT_THAT(heat_map(matrix), HasSubstr("0.000 ."));
}

PlannedCase planned(const std::string& name, int64_t n_bytes, double estimated_s) {
  return {.stage = "links",
          .name = name,
          .explanation = "Every pair exchanges messages.",
          .estimated_s = estimated_s,
          .deadline_s = 300.0,
          .measures = {{.figure = "link.one_way_gb_s"}},
          .sizes = {n_bytes}};
}

TEST(AcceptanceList, has_the_time_of_each_case_and_of_all) {
  PlannedCase skipped = planned("pairs 1 GiB", int64_t{1} << 30, 100.0);
  skipped.skip = "--quick";
  const std::string text =
      to_list({planned("pairs 8 B", 8, 0.5), planned("pairs 8 MiB", 8 << 20, 200.0), skipped});
  EXPECT_EQ(text,
            "  0.500 s  links/pairs 8 B\n"
            " 3.33 min  links/pairs 8 MiB\n"
            "        -  links/pairs 1 GiB: skipped: --quick\n"
            " 3.34 min  estimated for 2 cases; 1 skipped\n");
  EXPECT_THAT(to_list({}), HasSubstr("estimated for 0 cases"));
}

TEST(AcceptanceExplanation, names_the_gates_that_may_judge_the_case) {
  const AcceptanceProfile profile = sample_acceptance().profile;
  const std::string text = to_explanation(planned("pairs 8 MiB", int64_t{8} << 20, 3.0), profile);
  EXPECT_THAT(text, StartsWith("links/pairs 8 MiB\n  Every pair exchanges messages.\n"));
  EXPECT_THAT(text, HasSubstr("link.one_way_gb_s 8 MiB, between-hosts: >= 3.80 (4.00 - 5 %) GB/s"));
  EXPECT_THAT(text, HasSubstr("two-hosts.toml:12"));
  EXPECT_THAT(to_explanation(planned("pairs 8 B", 8, 3.0), profile), HasSubstr("has no gate"));
}

}  // namespace
}  // namespace testbed
