// Points, crossovers with their cause, Pareto fronts, and the order of a sweep's simulations, over
// records with known answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "kernels/base/errors.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/sweep/points.hpp"
#include "runtime/sweep/run_points.hpp"
#include "tests/unit/config_test_support.hpp"
#include "tests/unit/sweep_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using test::result_of;
using test::Split;
using test::with_zero_latency;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

SweepPoint at_tp(int tp) { return {.cluster = "c", .tp = tp}; }

TEST(SweepPoints, are_every_combination_with_tp_innermost) {
  SweepConfig config;
  config.clusters = {"a", "b"};
  config.tp = {1, 2};
  config.pp = {1, 3};
  config.batch = {1, 8};
  config.context = {0, 1024};
  const std::vector<SweepPoint> points = sweep_points(config);
  ASSERT_EQ(points.size(), 32U);
  EXPECT_EQ(points[0], (SweepPoint{.cluster = "a"}));
  EXPECT_EQ(points[1], (SweepPoint{.cluster = "a", .tp = 2}));
  EXPECT_EQ(points[2], (SweepPoint{.cluster = "a", .pp = 3}));
  EXPECT_EQ(points[4], (SweepPoint{.cluster = "a", .context = 1024}));
  EXPECT_EQ(points[31],
            (SweepPoint{.cluster = "b", .tp = 2, .pp = 3, .batch = 8, .context = 1024}));
  config.base.workload.gen_tokens = 7;
  const RunConfig run = config_of(config, points[31]);
  EXPECT_EQ(run.cluster.name, "b");
  EXPECT_EQ(run.parallel, (ParallelConfig{.tp = 2, .pp = 3, .dp = 1}));
  EXPECT_EQ(run.workload.batch, 8);
  EXPECT_EQ(run.workload.context, 1024);
  EXPECT_EQ(run.workload.gen_tokens, 7);
}

ModelConfig llama70() { return read_model_config(locate_model("llama3-70b")); }

ClusterSpec cluster_of(int n_devices) {
  ClusterSpec cluster;
  cluster.name = "eight";
  cluster.node.n_devices = n_devices;
  return cluster;
}

TEST(SweepPoints, best_searches_the_legal_splits_of_the_devices_and_of_whole_parts_of_them) {
  SweepConfig config;
  config.clusters = {"four"};
  config.batch = {2};
  const std::vector<SweepPoint> points = all_splits(config, llama70(), {4});
  std::vector<std::vector<int>> splits;
  for (const SweepPoint& p : points) splits.push_back({p.tp, p.pp, p.dp});
  // dp at most 2, the batch; on 1, 2 or 4 devices.
  EXPECT_THAT(splits,
              testing::UnorderedElementsAre(ElementsAre(1, 1, 1),
                                            ElementsAre(2, 1, 1),
                                            ElementsAre(1, 2, 1),
                                            ElementsAre(1, 1, 2),
                                            ElementsAre(4, 1, 1),
                                            ElementsAre(2, 2, 1),
                                            ElementsAre(1, 4, 1),
                                            ElementsAre(2, 1, 2),
                                            ElementsAre(1, 2, 2)));
  // 79 divides neither the 64 heads nor leaves a legal tp but 1; 79 stages of 80 layers are legal,
  // and so is one device.
  EXPECT_EQ(all_splits(config, llama70(), {79}).size(), 2U);
  // Of 101 devices only one: there are 80 layers.
  EXPECT_EQ(all_splits(config, llama70(), {101}).size(), 1U);
}

// {tp, pp, cp, dp, ep} of the splits of one cluster.
std::vector<std::array<int, 5>> splits_of(const SweepConfig& config,
                                          const char* model,
                                          int n_devices) {
  std::vector<std::array<int, 5>> splits;
  for (const SweepPoint& p :
       all_splits(config, read_model_config(locate_model(model)), {n_devices})) {
    splits.push_back({p.tp, p.pp, p.cp, p.dp, p.ep});  // NOLINT
  }
  return splits;
}

TEST(SweepPoints, best_searches_expert_groups_and_the_given_context_degrees) {
  SweepConfig config;
  config.clusters = {"c"};
  config.batch = {2};
  config.ep = {};
  // Experts cut over tp, whole over tp, and over all ranks of a stage.
  EXPECT_THAT(splits_of(config, "mixtral-8x7b", 2),
              testing::UnorderedElementsAre(ElementsAre(1, 1, 1, 1, 1),
                                            ElementsAre(2, 1, 1, 1, 1),
                                            ElementsAre(2, 1, 1, 1, 2),
                                            ElementsAre(1, 2, 1, 1, 1),
                                            ElementsAre(1, 1, 1, 2, 1),
                                            ElementsAre(1, 1, 1, 2, 2)));
  EXPECT_THAT(splits_of(config, "llama3-8b", 2), testing::SizeIs(4)) << "it has no experts";
  config.cp = {2};
  config.ep = {1};
  EXPECT_THAT(splits_of(config, "mixtral-8x7b", 2), ElementsAre(ElementsAre(1, 1, 2, 1, 1)));
}

TEST(SweepPoints, context_and_expert_degrees_are_swept_and_named) {
  SweepConfig config;
  config.clusters = {"c"};
  config.tp = {2, 4};
  config.cp = {1, 2};
  config.ep = {1, 2};
  const std::vector<SweepPoint> points = sweep_points(config);
  ASSERT_EQ(points.size(), 8U);
  EXPECT_EQ(points[7], (SweepPoint{.cluster = "c", .tp = 4, .cp = 2, .ep = 2}));
  EXPECT_EQ(config_of(config, points[7]).parallel,
            (ParallelConfig{.tp = 4, .cp = 2, .dp = 1, .ep = 2}));
  EXPECT_EQ(points[7].n_devices(), 8) << "expert groups are of the same devices";
  EXPECT_EQ(split_name(points[7]), "tp 4 x pp 1 x dp 1 x cp 2, ep 2");
  EXPECT_EQ(split_name(points[0]), "tp 2 x pp 1 x dp 1");
}

TEST(SweepPoints, refusals_say_what_is_wrong) {
  SweepConfig config;
  const ModelConfig model = llama70();
  const ClusterSpec cluster = cluster_of(8);
  EXPECT_EQ(why_refused(config_of(config, at_tp(8)), model, cluster), std::nullopt);
  EXPECT_EQ(why_refused(config_of(config, at_tp(16)), model, cluster),
            "tp 16 x pp 1 x cp 1 x dp 1 = 16 devices, and eight has 8");
  EXPECT_THAT(*why_refused(config_of(config, at_tp(3)), model, cluster),
              HasSubstr("legal for llama3-70b: 1, 2, 4, 8"));
}

TEST(Crossover, latency_is_the_cause_if_without_it_there_is_no_crossing) {
  const auto crossovers = find_crossovers(
      {result_of(at_tp(1), {.memory_ms = 8}),
       result_of(at_tp(2), {.memory_ms = 4, .interconnect_ms = 1}),
       with_zero_latency(result_of(at_tp(4), {.memory_ms = 2, .interconnect_ms = 3}),
                         {.memory_ms = 2, .interconnect_ms = 0.5})});
  ASSERT_EQ(crossovers.size(), 1U);
  const Crossover& c = crossovers[0];
  EXPECT_EQ(c.phase, Phase::decode);
  EXPECT_EQ(c.series.tp, 1);
  EXPECT_EQ(c.highest_tp, 4);
  EXPECT_EQ(c.tp, 4);
  EXPECT_EQ(c.cause, CrossoverCause::latency);
  EXPECT_TRUE(c.from_there_on);
  EXPECT_FALSE(c.may_be_lower);
  EXPECT_DOUBLE_EQ(c.now.memory_ms, 2);
  EXPECT_DOUBLE_EQ(c.now.interconnect_ms, 3);
  EXPECT_DOUBLE_EQ(c.without_latency->interconnect_ms, 0.5);
}

TEST(Crossover, bandwidth_is_the_cause_if_it_is_there_all_the_same) {
  const auto crossovers = find_crossovers(
      {with_zero_latency(result_of(at_tp(2), {.memory_ms = 4, .interconnect_ms = 6}),
                         {.memory_ms = 4, .interconnect_ms = 5}),
       result_of(at_tp(4), {.memory_ms = 2, .interconnect_ms = 9})});
  ASSERT_EQ(crossovers.size(), 1U);
  EXPECT_EQ(crossovers[0].tp, 2);
  EXPECT_EQ(crossovers[0].cause, CrossoverCause::bandwidth);
  EXPECT_TRUE(crossovers[0].may_be_lower) << "tp 1 was not simulated";
}

TEST(Crossover, says_from_where_links_cost_more_than_memory_and_compute) {
  const auto crossovers = find_crossovers(
      {result_of(at_tp(2), {.memory_ms = 1, .interconnect_ms = 2, .other_ms = 4}),
       result_of(at_tp(4), {.memory_ms = 1, .interconnect_ms = 3, .other_ms = 2}),
       result_of(at_tp(8), {.memory_ms = 0.5, .interconnect_ms = 4, .other_ms = 1})});
  ASSERT_EQ(crossovers.size(), 1U);
  EXPECT_EQ(crossovers[0].tp, 2);
  EXPECT_EQ(crossovers[0].tp_over_work, 8) << "at tp 4 they are equal";
  EXPECT_DOUBLE_EQ(crossovers[0].now.compute_ms, 4);
}

TEST(Crossover, splits_that_differ_in_cp_or_ep_are_series_of_their_own) {
  const auto crossovers = find_crossovers(
      {result_of({.cluster = "c", .tp = 1, .cp = 2}, {.memory_ms = 4}),
       result_of({.cluster = "c", .tp = 2, .ep = 2}, {.memory_ms = 2, .interconnect_ms = 3}),
       result_of({.cluster = "c", .tp = 2, .cp = 2}, {.memory_ms = 2, .interconnect_ms = 5})});
  ASSERT_EQ(crossovers.size(), 2U);
  EXPECT_EQ(crossovers[0].series.cp, 2);
  EXPECT_EQ(crossovers[0].tp, 2);
  EXPECT_FALSE(crossovers[0].may_be_lower);
  EXPECT_EQ(crossovers[1].series.ep, 2);
}

TEST(Crossover, cause_is_null_without_the_simulation_that_tells_it) {
  const auto crossovers =
      find_crossovers({result_of(at_tp(2), {.memory_ms = 4, .interconnect_ms = 6})});
  ASSERT_EQ(crossovers.size(), 1U);
  EXPECT_EQ(crossovers[0].tp, 2);
  EXPECT_FALSE(crossovers[0].cause);
}

TEST(Crossover, none_within_the_sweep_says_how_far_it_was_looked_for) {
  const auto crossovers =
      find_crossovers({result_of(at_tp(8), {.memory_ms = 2, .interconnect_ms = 2}),
                       result_of(at_tp(1), {.memory_ms = 16})});
  ASSERT_EQ(crossovers.size(), 1U);
  EXPECT_FALSE(crossovers[0].tp) << "equal is not more";
  EXPECT_EQ(crossovers[0].series.tp, 1) << "by tp, whatever the order of the list";
  EXPECT_EQ(crossovers[0].highest_tp, 8);
}

TEST(Crossover, says_when_a_higher_degree_is_below_again) {
  const auto crossovers =
      find_crossovers({result_of(at_tp(1), {.memory_ms = 8}),
                       result_of(at_tp(2), {.memory_ms = 4, .interconnect_ms = 5}),
                       result_of(at_tp(4), {.memory_ms = 2, .interconnect_ms = 1}),
                       result_of(at_tp(8), {.memory_ms = 1, .interconnect_ms = 9})});
  ASSERT_EQ(crossovers.size(), 1U);
  EXPECT_EQ(crossovers[0].tp, 2);
  EXPECT_FALSE(crossovers[0].from_there_on);
}

TEST(Crossover, series_differ_in_all_but_tp_and_what_was_refused_is_left_out) {
  SweepPoint other = at_tp(4);
  other.batch = 64;
  SweepResult refused{.point = at_tp(16)};
  refused.refused = "too many devices";
  const auto crossovers =
      find_crossovers({result_of(at_tp(2), {.memory_ms = 4}),
                       refused,
                       result_of(other, {.memory_ms = 2, .interconnect_ms = 3})});
  ASSERT_EQ(crossovers.size(), 2U);
  EXPECT_FALSE(crossovers[0].tp);
  EXPECT_EQ(crossovers[0].highest_tp, 2);
  EXPECT_EQ(crossovers[1].series.batch, 64);
  EXPECT_EQ(crossovers[1].tp, 4);
}

TEST(Pareto, keeps_what_nothing_beats_in_both) {
  const std::vector<Offer> front =
      pareto_front({{0, 10, 100}, {1, 5, 50}, {2, 7, 40}, {3, 5, 60}, {4, 20, 100}, {5, 30, 300}});
  std::vector<size_t> kept;
  for (const Offer& offer : front) kept.push_back(offer.result);
  EXPECT_THAT(kept, ElementsAre(3, 0, 5));
  EXPECT_THAT(pareto_front({}), IsEmpty());
}

TEST(Best, is_the_end_of_the_front_that_was_asked_for) {
  // Tokens/s per device: 1000/4/4 = 62.5 and 1000/10/1 = 100.
  SweepPoint elsewhere = at_tp(2);
  elsewhere.cluster = "d";
  const std::vector<SweepResult> results{result_of(at_tp(4), {.memory_ms = 4}),
                                         result_of(at_tp(1), {.memory_ms = 10}),
                                         result_of(elsewhere, {.memory_ms = 1})};
  const auto fastest = find_best(results, SweepConfig::Best::tpot);
  ASSERT_EQ(fastest.size(), 2U);
  EXPECT_EQ(fastest[0].best.result, 0U);
  EXPECT_DOUBLE_EQ(fastest[0].best.tokens_per_s_per_device, 62.5);
  EXPECT_EQ(fastest[1].best.result, 2U);
  const auto cheapest = find_best(results, SweepConfig::Best::throughput);
  EXPECT_EQ(cheapest[0].best.result, 1U);
  EXPECT_DOUBLE_EQ(cheapest[0].best.tpot_ms, 10);
  EXPECT_EQ(cheapest[0].pareto.size(), 2U);
}

// Memory time 8 ms / tp, links 1 ms per tp above 1, half of it latency.
RunRecord toy_machine(const RunConfig& run, const ClusterSpec& cluster, WhatIf what_if) {
  const int tp = run.parallel.tp;
  Split split{.memory_ms = 8.0 / tp, .interconnect_ms = tp > 1 ? tp : 0.0, .other_ms = 1.0};
  if (what_if == WhatIf::free_links) split.interconnect_ms = 0.0;
  if (what_if == WhatIf::zero_latency) split.interconnect_ms *= 0.5;
  if (what_if == WhatIf::infinite_memory) split.memory_ms = 0.0;
  SweepPoint point{.cluster = cluster.name, .tp = tp, .pp = run.parallel.pp};
  RunRecord record = test::record_of(point, split);
  if (tp == 8) record.run.labels = {"SIMULATED on eight", "warning: tp 8 crosses nodes"};
  return record;
}

TEST(RunPoints, everything_is_checked_before_anything_is_simulated) {
  SweepConfig config;
  config.clusters = {"eight"};
  config.tp = {1, 2, 3, 4, 8, 16};
  std::vector<std::string> log;
  const SweepEngine engine{
      .check =
          [&](const RunConfig& run, const ClusterSpec&) {
            log.push_back("check " + std::to_string(run.parallel.tp));
            if (run.parallel.tp == 1) throw ConfigError("does not fit; tp 2 would");
          },
      .simulate =
          [&](const RunConfig& run, const ClusterSpec& cluster, WhatIf what_if) {
            log.push_back(std::string(what_if_name(what_if)) + " " +
                          std::to_string(run.parallel.tp));
            return toy_machine(run, cluster, what_if);
          },
      .progress = [&](size_t done, size_t all) { EXPECT_LT(done, all); }};
  const Sweep sweep = run_points(config, llama70(), {{"eight", cluster_of(8)}}, engine);
  ASSERT_EQ(log.size(), 4U + 3U * 5U);
  EXPECT_EQ(log[3], "check 8");
  EXPECT_EQ(log[4], "nothing 2");
  EXPECT_EQ(log[5], "free_links 2");
  ASSERT_EQ(sweep.results.size(), 6U);
  EXPECT_EQ(sweep.results[0].refused, "does not fit; tp 2 would");
  EXPECT_THAT(*sweep.results[2].refused, HasSubstr("--tp 3"));
  EXPECT_THAT(*sweep.results[5].refused, HasSubstr("16 devices"));
  EXPECT_THAT(sweep.results[4].warnings, ElementsAre("tp 8 crosses nodes"));
  // tp 4: 2 + 4 + 1 ms; 3 ms with free links, 5 with zero latency or without memory time.
  const SweepResult& four = sweep.results[3];
  EXPECT_DOUBLE_EQ(*four.speedup(Phase::decode, WhatIf::free_links), 7.0 / 3.0);
  EXPECT_DOUBLE_EQ(*four.speedup(Phase::decode, WhatIf::zero_latency), 7.0 / 5.0);
  EXPECT_DOUBLE_EQ(*four.speedup(Phase::decode, WhatIf::infinite_memory), 7.0 / 5.0);
  EXPECT_DOUBLE_EQ(*four.speedup(Phase::decode, WhatIf::no_waiting), 1.0);
  EXPECT_EQ(four.speedup(Phase::prefill, WhatIf::no_waiting), std::nullopt);
  ASSERT_EQ(sweep.crossovers.size(), 1U);
  EXPECT_EQ(sweep.crossovers[0].tp, 4);
  EXPECT_EQ(sweep.crossovers[0].cause, CrossoverCause::latency) << "2 ms of links are not above 2";
}

TEST(RunPoints, a_lone_device_is_not_simulated_again_for_its_links) {
  SweepConfig config;
  config.clusters = {"eight"};
  int n_simulated = 0;
  const SweepEngine engine{.check = [](const auto&, const auto&) {},
                           .simulate =
                               [&](const RunConfig& run, const ClusterSpec& c, WhatIf what_if) {
                                 ++n_simulated;
                                 return toy_machine(run, c, what_if);
                               },
                           .progress = [](size_t, size_t) {}};
  const Sweep sweep = run_points(config, llama70(), {{"eight", cluster_of(8)}}, engine);
  EXPECT_EQ(n_simulated, 2) << "as it is, and without memory time";
  EXPECT_EQ(*sweep.results[0].speedup(Phase::decode, WhatIf::free_links), 1.0);
  EXPECT_EQ(*sweep.results[0].speedup(Phase::decode, WhatIf::infinite_memory), 9.0);
}

TEST(RunPoints, best_simulates_the_what_ifs_of_the_best_alone) {
  SweepConfig config;
  config.clusters = {"eight"};
  config.best = SweepConfig::Best::tpot;
  int n_what_ifs = 0;
  const SweepEngine engine{.check = [](const auto&, const auto&) {},
                           .simulate =
                               [&](const RunConfig& run, const ClusterSpec& c, WhatIf what_if) {
                                 n_what_ifs += what_if != WhatIf::nothing;
                                 return toy_machine(run, c, what_if);
                               },
                           .progress = [](size_t, size_t) {}};
  const Sweep sweep = run_points(config, llama70(), {{"eight", cluster_of(8)}}, engine);
  EXPECT_EQ(sweep.results.size(), 10U);  // tp x pp of 1, 2, 4 and 8 devices
  EXPECT_EQ(n_what_ifs, 4);
  EXPECT_THAT(sweep.crossovers, IsEmpty());
  ASSERT_EQ(sweep.best.size(), 1U);
  // 8/tp + tp + 1 ms (no links at tp 1): 9, 7, 7, 10 at tp 1, 2, 4, 8.
  EXPECT_DOUBLE_EQ(sweep.best[0].best.tpot_ms, 7.0);
}

TEST(RunPoints, a_sweep_of_which_nothing_runs_is_a_mistake) {
  SweepConfig config;
  config.clusters = {"eight"};
  config.tp = {3, 16};
  const SweepEngine never{.check = [](const auto&, const auto&) { FAIL(); },
                          .simulate = [](const auto&, const auto&, WhatIf) { return RunRecord{}; },
                          .progress = [](size_t, size_t) {}};
  const std::string message = config_error([&] {
    run_points(config, llama70(), {{"eight", cluster_of(8)}}, never);
  });
  EXPECT_THAT(message, HasSubstr("none of the sweep's 2 points can run; tp 3"));
  EXPECT_THAT(message, HasSubstr("legal for llama3-70b"));
}

}  // namespace
}  // namespace testbed
