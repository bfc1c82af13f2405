// Which model an acceptance runs in which split.
#include <gmock/gmock.h>

#include "runtime/accept/model_runs.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"

namespace testbed {
namespace {

using testing::HasSubstr;

SplitRun run_of(Axis axis, int world_size, const AcceptConfig& config = {}) {
  return split_run(config, axis, world_size, RunLength::brief);
}

TEST(ModelRuns, configured_model_at_its_largest_legal_degree) {
  // smollm2-135m has 9 heads and 3 KV heads.
  const SplitRun tp = run_of(Axis::tp, 6);
  EXPECT_EQ(tp.model, "smollm2-135m 4 layers");
  EXPECT_EQ(tp.split, "tp 3 dp 2 brief");
  EXPECT_FALSE(tp.instead);
  EXPECT_FALSE(tp.skip);
  EXPECT_EQ(run_of(Axis::cp, 4).text(), "smollm2-135m 4 layers cp 4 brief");
  EXPECT_EQ(run_of(Axis::pp, 8).text(), "smollm2-135m 8 layers pp 8 brief");
  EXPECT_EQ(run_of(Axis::pp, 62).text(), "smollm2-135m 4 layers pp 2 dp 31 brief");
}

TEST(ModelRuns, another_preset_stands_in_where_the_split_is_illegal) {
  const SplitRun tp = run_of(Axis::tp, 4);
  EXPECT_EQ(tp.text(), "qwen3-0.6b 2 layers tp 4 brief");
  ASSERT_TRUE(tp.instead);
  EXPECT_THAT(*tp.instead, HasSubstr("smollm2-135m: --tp 4: 9 heads do not divide by 4"));
  const SplitRun ep = split_run({}, Axis::ep, 4, RunLength::whole);
  EXPECT_EQ(ep.text(), "qwen3-30b-a3b 1 layer tp 4 ep 4");
  EXPECT_THAT(ep.instead.value_or(""), HasSubstr("smollm2-135m has no experts"));
  EXPECT_FALSE(ep.skip);
  // 1.2e9 weights take longer to be drawn than all else that --quick does.
  EXPECT_THAT(run_of(Axis::ep, 4).skip.value_or(""),
              HasSubstr("2.5 GB of weights: not with --quick"));
}

TEST(ModelRuns, no_preset_can_be_cut_in_anything) {
  const SplitRun tp = run_of(Axis::tp, 13);
  ASSERT_TRUE(tp.skip);
  EXPECT_THAT(*tp.skip, HasSubstr("9 heads do not divide by 13"));
  EXPECT_THAT(*tp.skip, HasSubstr("no preset can be split so"));
}

TEST(ModelRuns, one_rank_has_nothing_to_split) {
  for (const Axis axis : {Axis::tp, Axis::pp, Axis::cp, Axis::ep}) {
    EXPECT_EQ(run_of(axis, 1).skip, "one rank: there is nothing to split");
  }
}

// Experts over replicas where the heads cannot be divided.
TEST(ModelRuns, experts_over_replicas) {
  const SplitRun ep = split_run({}, Axis::ep, 5, RunLength::whole);
  ASSERT_FALSE(ep.skip);
  EXPECT_EQ(ep.mesh.ep, 5);
  EXPECT_EQ(ep.mesh.dp * ep.mesh.tp, 5);
}

TEST(ModelRuns, whole_runs_keep_all_layers) {
  const SplitRun pp = split_run({}, Axis::pp, 4, RunLength::whole);
  EXPECT_EQ(pp.text(), "smollm2-135m pp 4");
  EXPECT_EQ(pp.config.layers, 30);
  AcceptConfig cut;
  cut.layers = 3;
  EXPECT_EQ(split_run(cut, Axis::pp, 4, RunLength::whole).text(),
            "smollm2-135m 3 layers pp 2 dp 2");
}

// Every case that is planned is legal, has a request for each replica, and no more positions than
// the model.
TEST(ModelRuns, what_is_planned_can_be_run) {
  for (const int world_size : {2, 3, 4, 6, 8, 16, 64, 100}) {
    for (const Axis axis : {Axis::tp, Axis::pp, Axis::cp, Axis::ep}) {
      for (const RunLength length : {RunLength::brief, RunLength::whole}) {
        const SplitRun run = split_run({}, axis, world_size, length);
        SCOPED_TRACE(run.text());
        if (run.skip) continue;
        const ModelConfig model =
            truncated_to(read_model_config(locate_model(run.config.model)), *run.config.layers);
        EXPECT_EQ(run.mesh.world_size(), world_size);
        EXPECT_GT(run.mesh.degree(axis), 1);
        EXPECT_EQ(resolve_mesh(run.config.parallel, world_size), run.mesh);
        EXPECT_EQ(why_illegal(model, run.mesh, run.config.parallel, 1), std::nullopt);
        const WorkloadConfig& work = run.config.workload;
        EXPECT_EQ(work.batch % run.mesh.dp, 0);
        EXPECT_LE(work.prompt_tokens + work.gen_tokens, model.max_positions);
        EXPECT_GE(work.gen_tokens, 8);  // several decode steps
        EXPECT_GT(estimated_seconds(run, world_size), 0.0);
        EXPECT_EQ(model.layer(model.n_layers - 1).has_experts, axis == Axis::ep);
      }
    }
  }
}

TEST(ModelRuns, what_the_command_line_says_is_carried_over) {
  AcceptConfig accept;
  accept.seed = 7;
  accept.threads = 1;
  accept.timeout_s = 33;
  accept.repeats = 4;
  accept.inject = {{.kind = Injection::Kind::delay, .rank = 2, .delay_us = 100}};
  const RunConfig run = run_of(Axis::cp, 4, accept).config;
  EXPECT_EQ(run.sampling.seed, 7);
  EXPECT_EQ(run.threads, 1);
  EXPECT_EQ(run.timeout_s, 33);
  EXPECT_EQ(run.repeats, 4);
  EXPECT_TRUE(run.inject.empty());  // the job's faults are in its communicators already
  EXPECT_TRUE(run.output.quiet);
}

}  // namespace
}  // namespace testbed
