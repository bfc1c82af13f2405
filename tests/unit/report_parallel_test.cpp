// Ring attention and experts in JSON, table, CSV and trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/report/chrome_trace.hpp"
#include "runtime/report/csv.hpp"
#include "runtime/report/json.hpp"
#include "runtime/report/table.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json phase_json(const AnalysisInput& input, const char* phase) {
  return json::parse(to_json(analyse(input))).at("phases").at(phase);
}

TEST(Json, ring_steps_have_the_fields_that_scripts_read) {
  const json prefill = phase_json(ring_input(), "prefill");
  ASSERT_EQ(prefill.at("ring").size(), 2U);
  const json& step = prefill.at("ring").at(0);
  EXPECT_EQ(step.at("step"), 0);
  EXPECT_DOUBLE_EQ(step.at("compute_ms").get<double>(), 0.195);
  EXPECT_DOUBLE_EQ(step.at("transfer_ms").get<double>(), 0.166);
  EXPECT_DOUBLE_EQ(step.at("hidden_ms").get<double>(), 0.140);
  EXPECT_DOUBLE_EQ(step.at("exposed_ms").get<double>(), 0.026);
  EXPECT_EQ(step.at("wait_ms"), 0.0);
  EXPECT_EQ(step.at("sent_bytes"), 4096);
  EXPECT_EQ(step.at("transfer_is_bound"), false);
  EXPECT_TRUE(prefill.at("experts").is_null());
}

TEST(Json, experts_have_the_fields_that_scripts_read) {
  const json decode = phase_json(experts_input(), "decode");
  EXPECT_TRUE(decode.at("ring").is_null());
  const json& experts = decode.at("experts");
  EXPECT_EQ(experts.at("n_experts"), 4);
  EXPECT_EQ(experts.at("top_k"), 2);
  EXPECT_EQ(experts.at("exchange"), "all-to-all");
  const json& layer = experts.at("per_layer").at(0);
  EXPECT_EQ(layer.at("layer"), 0);
  EXPECT_EQ(layer.at("passes"), 2);
  EXPECT_EQ(layer.at("tokens_per_expert"), json({3, 2, 2, 1}));
  EXPECT_EQ(layer.at("touched"), 2.5);
  EXPECT_EQ(layer.at("touched_uniform"), 2.75);
  EXPECT_EQ(layer.at("touched_bytes"), 5000);
  EXPECT_DOUBLE_EQ(layer.at("balance").get<double>(), 2.0 / 3.0);
  EXPECT_EQ(experts.at("all_to_all_bytes").at(0), json({100, 300, 0, 0}));
}

TEST(Json, the_split_says_how_it_exchanges) {
  AnalysisInput input = experts_input();
  input.run.parallel.cp_placement = "contiguous";
  input.run.parallel.tp_comm = "reduce-scatter";
  const json parallel = json::parse(to_json(analyse(input))).at("parallel");
  EXPECT_EQ(parallel.at("ep"), 2);
  EXPECT_EQ(parallel.at("cp_placement"), "contiguous");
  EXPECT_EQ(parallel.at("expert_exchange"), "all-to-all");
  EXPECT_EQ(parallel.at("tp_comm"), "reduce-scatter");
}

TEST(Table, shows_the_ring_by_step) {
  AnalysisInput input = ring_input();
  const std::string known = to_table(analyse(input));
  EXPECT_THAT(known, HasSubstr("x cp 2 (zigzag)"));
  EXPECT_THAT(known, HasSubstr("    0               0.195        0.166      0.140       0.026"));
  EXPECT_THAT(known, HasSubstr("4.10 kB"));
  EXPECT_THAT(known, Not(HasSubstr("<=")));
  input.timelines[0].comms[1].comm.arrived_ns = 0;
  input.transports[Axis::cp] = "tcp";
  EXPECT_THAT(to_table(analyse(input)), HasSubstr("<=0.190"));
}

TEST(Table, shows_the_worst_balance_and_what_is_touched) {
  AnalysisInput input = experts_input();
  RankBuilder b(input.mesh, 0);
  b.at(Phase::decode, 0, 5, Site::experts).experts(1, {0, 1, 0, 1}, {});
  input.timelines[0].experts.push_back(b.t.experts[0]);
  const std::string table = to_table(analyse(input));
  EXPECT_THAT(table, HasSubstr(", experts over 2 (all-to-all)"));
  EXPECT_THAT(table,
              HasSubstr("experts (all-to-all): a pass touches 2.25 of 4, 2.38 if 2 a token"));
  EXPECT_THAT(table, HasSubstr("layer 5, mean / busiest 0.500: expert 1 got 1 "));
  EXPECT_THAT(table, HasSubstr("440 B between ranks a repeat, most from rank 0: 300 B"));
}

TEST(Csv, ring_and_experts_are_columns_and_empty_where_there_is_none) {
  const std::string ring = to_csv(analyse(ring_input()));
  EXPECT_THAT(ring, HasSubstr(",ring_compute_ms,ring_hidden_ms,ring_exposed_ms,experts_touched,"));
  EXPECT_THAT(ring, HasSubstr(",0.345,0.14,0.026,,,\r\n"));
  EXPECT_THAT(to_csv(analyse(experts_input())), HasSubstr(",,,,2.5,2.75,0.666666666666666"));
}

TEST(Trace, ring_steps_are_a_track_of_their_own) {
  const AnalysisInput input = ring_input();
  const json trace = json::parse(chrome_trace(input.timelines, input.mesh, false));
  std::vector<std::string> spans;
  int n_named = 0;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("tid") != 3) continue;
    if (event.at("ph") == "M") {
      n_named += event.at("args").at("name") == "ring" ? 1 : 0;
      continue;
    }
    spans.push_back(event.at("name"));
    if (event.at("pid") == 0 && event.at("name") == "ring step 0") {
      EXPECT_DOUBLE_EQ(event.at("ts").get<double>(), 100.0);
      EXPECT_DOUBLE_EQ(event.at("dur").get<double>(), 202.0);
      EXPECT_EQ(event.at("args").at("ring_step"), 0);
    }
  }
  EXPECT_EQ(n_named, 2);
  EXPECT_THAT(spans,
              testing::ElementsAre("ring step 0", "ring step 1", "ring step 0", "ring step 1"));
}

}  // namespace
}  // namespace testbed
