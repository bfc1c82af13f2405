// Records read back and put side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/errors.hpp"
#include "runtime/report/compare_report.hpp"
#include "runtime/report/json.hpp"
#include "tests/unit/config_test_support.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using test::config_error;
using testing::HasSubstr;

class Compare : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  // A record of two timed repeats, changed before it is written.
  std::string record(const std::string& name, const std::function<void(RunRecord&)>& change = {}) {
    AnalysisInput input = late_rank_input();
    input.timed.push_back(input.timed.front());
    RunRecord made = analyse(input);
    made.timing.tpot_ms = {{10.0, 10.4}};
    if (change) change(made);
    return write(name, to_json(made));
  }
  std::string error_of(const std::string& text) {
    const std::string path = write("broken.json", text);
    return config_error([&] { read_record(path); });
  }
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }

 private:
  std::filesystem::path folder_;
};

FigurePair find(const std::vector<GroupPair>& pairs, const std::string& title, const char* name) {
  for (const GroupPair& group : pairs)
    if (group.title == title)
      for (const FigurePair& pair : group.figures)
        if (pair.any().name == name) return pair;
  ADD_FAILURE() << title << ": " << name << " is missing";
  return {ComparedFigure{}, ComparedFigure{}};
}

TEST_F(Compare, a_record_equals_itself) {
  const ComparedRecord a = read_record(record("a.json"));
  EXPECT_FALSE(a.simulated);
  int n_figures = 0;
  for (const GroupPair& group : pair_up(a, a)) {
    for (const TextPair& text : group.texts) EXPECT_EQ(text.a, text.b);
    for (const FigurePair& pair : group.figures) {
      EXPECT_EQ(pair.difference(), Difference::none) << group.title << ": " << pair.any().name;
      ++n_figures;
    }
  }
  EXPECT_GT(n_figures, 20);
}

TEST_F(Compare, only_what_leaves_both_spreads_is_marked) {
  const ComparedRecord a = read_record(record("a.json"));
  const ComparedRecord near = read_record(record("b.json", [](RunRecord& r) {
    r.timing.tpot_ms = {{10.3, 11.0}};
  }));
  const ComparedRecord far = read_record(record("c.json", [](RunRecord& r) {
    r.timing.tpot_ms = {{11.0, 12.0}};
  }));
  const ComparedRecord single =
      read_record(record("d.json", [](RunRecord& r) { r.timing.tpot_ms = {{99.0}}; }));
  EXPECT_EQ(find(pair_up(a, near), "timing", "TPOT").difference(), Difference::none);
  const FigurePair pair = find(pair_up(a, far), "timing", "TPOT");
  EXPECT_EQ(pair.difference(), Difference::beyond_spread);
  EXPECT_DOUBLE_EQ(*pair.ratio(), 11.5 / 10.2);
  EXPECT_EQ(find(pair_up(a, single), "timing", "TPOT").difference(), Difference::spread_unknown);
  const std::string text = comparison_table(a, far);
  EXPECT_THAT(text,
              testing::ContainsRegex("TPOT +10.2 \\(10.0 to 10.4\\) +11.5 .* \\+12.7 % \\*\n"));
}

TEST_F(Compare, bytes_are_exact_and_settings_are_told_apart) {
  const ComparedRecord a = read_record(record("a.json"));
  const ComparedRecord b = read_record(record("b.json", [](RunRecord& r) {
    r.run.parallel.tp = 4;
    r.phases[0].weight_bytes += 1;
    r.phases[0].collectives[0].algorithm = "nvls";
    r.phases[0].collectives[0].site = "mlp";
  }));
  const auto pairs = pair_up(a, b);
  EXPECT_EQ(find(pairs, "decode", "weights a step").difference(), Difference::beyond_spread);
  EXPECT_EQ(find(pairs, "decode", "KV a step").difference(), Difference::none);
  const FigurePair mine = find(pairs, "decode: all_reduce over tp at attention", "payload");
  EXPECT_TRUE(mine.a && !mine.b);
  EXPECT_EQ(mine.difference(), Difference::one_sided);
  const FigurePair theirs = find(pairs, "decode: all_reduce over tp at mlp", "payload");
  EXPECT_TRUE(!theirs.a && theirs.b);
  EXPECT_THAT(comparison_table(a, b), testing::ContainsRegex("split +tp 2 .* tp 4 .* !\n"));
}

TEST_F(Compare, says_which_one_is_simulated_and_takes_its_figures_as_exact) {
  const ComparedRecord a = read_record(record("a.json"));
  const ComparedRecord b = read_record(record("b.json", [](RunRecord& r) {
    r.run.simulated = true;
    r.timing.tpot_ms = {{9.0}};
  }));
  EXPECT_TRUE(b.simulated);
  EXPECT_EQ(find(pair_up(a, b), "timing", "TPOT").difference(), Difference::beyond_spread);
  const std::string text = comparison_table(a, b);
  EXPECT_THAT(text, HasSubstr("A: measured "));
  EXPECT_THAT(text, HasSubstr("B: SIMULATED "));
  const auto json = nlohmann::json::parse(comparison_json(a, b));
  EXPECT_EQ(json["simulated"], true);
  EXPECT_EQ(json["a"]["simulated"], false);
  EXPECT_EQ(json["groups"][1]["title"], "timing");
  EXPECT_EQ(json["groups"][1]["figures"][1]["difference"], "beyond_spread");
  EXPECT_EQ(json["groups"][1]["figures"][1]["b"]["value"], 9.0);
}

TEST_F(Compare, energy_is_compared_where_it_is_known) {
  const ComparedRecord a = read_record(record("a.json"));
  const ComparedRecord b = read_record(record(
      "b.json", [](RunRecord& r) { r.energy = {.joules = 500.0, .joules_per_token = 2.5}; }));
  const ComparedRecord c = read_record(record(
      "c.json", [](RunRecord& r) { r.energy = {.joules = 600.0, .joules_per_token = 3.0}; }));
  const FigurePair pair = find(pair_up(b, c), "energy", "energy per token");
  EXPECT_DOUBLE_EQ(pair.ratio().value(), 1.2);
  EXPECT_EQ(pair.difference(), Difference::spread_unknown);
  EXPECT_EQ(find(pair_up(a, b), "energy", "energy").difference(), Difference::one_sided);
}

TEST_F(Compare, what_is_no_record_is_refused_with_the_reason) {
  EXPECT_THAT(config_error([] { read_record("/no/such.json"); }), HasSubstr("/no/such.json"));
  EXPECT_THAT(error_of(""), HasSubstr("broken.json:1: invalid JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("schema \"\" is not \"testbed-record-1\""));
  EXPECT_THAT(error_of(R"({"schema": "testbed-sweep-1"})"), HasSubstr("a sweep's"));
  EXPECT_THAT(error_of(R"({"schema": "testbed-record-1"})"), HasSubstr("simulated is missing"));
  EXPECT_THAT(error_of(R"({"schema": "testbed-record-1", "schema": "x"})"),
              HasSubstr("appears twice"));
  const auto whole = nlohmann::json::parse(to_json(analyse(late_rank_input())));
  for (const char* key : {"model", "parallel", "options", "timing", "phases", "labels"}) {
    auto without = whole;
    without.erase(key);
    EXPECT_THAT(error_of(without.dump()), HasSubstr(key));
  }
  auto wrong = whole;
  wrong["phases"]["decode"]["shares"]["kv"] = "a lot";
  EXPECT_THAT(error_of(wrong.dump()), HasSubstr("phases: decode: shares: kv is \"a lot\""));
  wrong = whole;
  wrong["phases"]["decode"]["collectives"][0]["payload_bytes"] = 1.5;
  EXPECT_THAT(error_of(wrong.dump()), HasSubstr("payload_bytes"));
}

}  // namespace
}  // namespace testbed
