// Plans: what a step computes, without a device.
#include "runtime/serving/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/serving/sampler.hpp"

namespace testbed {
namespace {

using ::testing::ElementsAre;

Request request(int32_t index, int64_t n_prompt, int64_t n_new) {
  Request r{.index = index, .prompt_ids = {}, .max_new_tokens = n_new};
  for (int64_t i = 0; i < n_prompt; ++i) r.prompt_ids.push_back(static_cast<int32_t>(10 + i));
  return r;
}

SchedulerOptions options(int n_microbatches = 1) {
  return {.kv_groups = {{.window = 0, .layers = {0}}},
          .block_size = 4,
          .n_microbatches = n_microbatches,
          .stop_ids = {}};
}

std::vector<int32_t> ids_for(const StepPlan& plan, int32_t id) {
  std::vector<int32_t> ids;
  for (const MicrobatchPlan& mb : plan.microbatches) {
    for (const LogitsRow& row : mb.logits_rows) {
      if (row.sample) ids.push_back(id);
    }
  }
  return ids;
}

TEST(Scheduler, prefill_then_one_row_per_request_and_step) {
  Scheduler scheduler({request(0, 5, 3), request(1, 1, 2)}, options());
  StepPlan prefill = *scheduler.next();
  EXPECT_EQ(prefill.phase, Phase::prefill);
  ASSERT_EQ(prefill.microbatches.size(), 1U);
  const MicrobatchPlan& mb = prefill.microbatches[0];
  EXPECT_EQ(mb.n_rows(), 6);
  ASSERT_EQ(mb.logits_rows.size(), 2U);
  EXPECT_EQ(mb.logits_rows[0].row, 4);
  EXPECT_EQ(mb.logits_rows[1].row, 5);
  scheduler.update(0, {7, 8});

  StepPlan decode = *scheduler.next();
  EXPECT_EQ(decode.phase, Phase::decode);
  EXPECT_EQ(decode.microbatches[0].tokens[0].id, 7);
  EXPECT_EQ(decode.microbatches[0].tokens[1].id, 8);
  EXPECT_EQ(decode.microbatches[0].sequences[0].first_position, 5);
  EXPECT_EQ(decode.microbatches[0].sequences[1].first_position, 1);
  scheduler.update(1, {9, 9});
  StepPlan last = *scheduler.next();  // request 1 is done
  EXPECT_EQ(last.microbatches[0].sequences.size(), 1U);
  scheduler.update(2, {3});
  EXPECT_FALSE(scheduler.next());
  EXPECT_THAT(scheduler.generated(0), ElementsAre(7, 9, 3));
  EXPECT_THAT(scheduler.generated(1), ElementsAre(8, 9));
}

TEST(Scheduler, D7_fewer_requests_than_microbatches_are_cut_by_tokens) {
  Scheduler scheduler({request(0, 10, 2)}, options(4));
  const StepPlan prefill = *scheduler.next();
  ASSERT_EQ(prefill.microbatches.size(), 4U);
  int64_t next_position = 0;
  for (const MicrobatchPlan& mb : prefill.microbatches) {
    ASSERT_EQ(mb.sequences.size(), 1U);
    EXPECT_EQ(mb.sequences[0].first_position, next_position);
    next_position += mb.n_rows();
  }
  EXPECT_EQ(next_position, 10);
  EXPECT_EQ(prefill.microbatches[0].logits_rows.size(), 0U);
  EXPECT_EQ(prefill.microbatches[3].logits_rows.size(), 1U);
  scheduler.update(0, {5});
  EXPECT_EQ(scheduler.next()->microbatches.size(), 1U);  // one token cannot be split
}

TEST(Scheduler, long_prompts_are_taken_in_chunks) {
  SchedulerOptions chunked = options();
  chunked.max_step_tokens = 8;
  Scheduler scheduler({request(0, 12, 1), request(1, 6, 1)}, chunked);
  std::vector<int64_t> rows;
  int32_t step = 0;
  while (const auto plan = scheduler.next()) {
    rows.push_back(plan->microbatches[0].n_rows());
    scheduler.update(step++, ids_for(*plan, 1));
  }
  EXPECT_THAT(rows, ElementsAre(8, 8, 2));
}

TEST(Scheduler, run_ahead_refers_to_the_slot_of_the_step_before) {
  SchedulerOptions ahead = options(2);
  ahead.run_ahead = true;
  Scheduler scheduler({request(0, 2, 4), request(1, 2, 4)}, ahead);
  const StepPlan prefill = *scheduler.next();
  scheduler.update(0, {1, 2});
  const StepPlan first = *scheduler.next();
  EXPECT_EQ(first.microbatches[1].tokens[0].id, 2);
  const StepPlan second = *scheduler.next();  // ids of `first` are not known yet
  EXPECT_EQ(second.microbatches[1].tokens[0].id, -1);
  EXPECT_EQ(second.microbatches[1].tokens[0].step, 1);
  EXPECT_EQ(second.microbatches[1].tokens[0].slot, 1);
  EXPECT_EQ(second.microbatches[1].sequences[0].first_position, 3);
}

TEST(Scheduler, D12_stops_on_any_listed_id_and_drops_what_ran_ahead) {
  SchedulerOptions ahead = options();
  ahead.run_ahead = true;
  ahead.stop_ids = {1, 106};
  Scheduler scheduler({request(0, 2, 9)}, ahead);
  scheduler.next();
  scheduler.update(0, {50});
  scheduler.next();
  scheduler.next();
  scheduler.update(1, {106});
  EXPECT_FALSE(scheduler.next());
  scheduler.update(2, {51});
  EXPECT_THAT(scheduler.generated(0), ElementsAre(50));
  EXPECT_TRUE(scheduler.last_accepted().empty());
}

TEST(Scheduler, plans_survive_the_trip_to_other_ranks) {
  Scheduler scheduler({request(3, 5, 3), request(4, 2, 2)}, options(2));
  const StepPlan plan = *scheduler.next();
  const StepPlan copy = parse_step_plan(serialise(plan));
  EXPECT_EQ(serialise(copy), serialise(plan));
  ASSERT_EQ(copy.microbatches.size(), 2U);
  EXPECT_EQ(copy.microbatches[1].sequences[0].request, 4);
  EXPECT_EQ(copy.microbatches[0].sequences[0].block_tables,
            plan.microbatches[0].sequences[0].block_tables);
}

TEST(KvBlocks, a_window_keeps_only_what_it_sees) {
  SchedulerOptions windowed = options();
  windowed.kv_groups = {{.window = 6, .layers = {0}}};
  windowed.max_step_tokens = 4;
  const std::vector<Request> requests = {request(0, 40, 10)};
  Scheduler scheduler(requests, windowed);
  const int64_t limit = blocks_for(requests, windowed)[0];
  EXPECT_LT(limit, 13);  // 50 tokens would be 13 blocks of 4
  int32_t step = 0;
  while (const auto plan = scheduler.next()) {
    for (const PlanSequence& s : plan->microbatches[0].sequences) {
      const std::vector<int32_t>& table = s.block_tables[0];
      std::set<int32_t> distinct;
      for (int64_t p = std::max<int64_t>(0, s.first_position - 5); p < s.first_position + s.n_rows;
           ++p) {
        const int32_t block = table[static_cast<size_t>(p / 4)];
        ASSERT_GE(block, 0) << "position " << p << " is visible";
        ASSERT_LT(block, limit);
      }
      for (const int32_t block : table) {
        if (block >= 0) {
          EXPECT_TRUE(distinct.insert(block).second) << "two places share a block";
        }
      }
    }
    scheduler.update(step++, ids_for(*plan, 1));
  }
  EXPECT_EQ(scheduler.generated(0).size(), 10U);
}

TEST(KvBlocks, waste_is_what_blocks_hold_beyond_tokens) {
  Scheduler scheduler({request(0, 5, 1), request(1, 1, 1)}, options());
  scheduler.next();
  EXPECT_EQ(scheduler.peak_blocks(0), 3);  // 2 + 1 blocks of 4
  EXPECT_EQ(scheduler.peak_tokens(0), 6);
}

TEST(Sampling, temperature_spreads_draws_by_probability) {
  const std::vector<float> logits = {0.0F, std::log(2.0F), std::log(1.0F)};  // 1 : 2 : 1
  EXPECT_EQ(draw(logits, 1.0, 1.0, 0.0), 1);
  EXPECT_EQ(draw(logits, 1.0, 1.0, 0.49), 1);
  EXPECT_EQ(draw(logits, 1.0, 1.0, 0.51), 0);  // ties keep id order
  EXPECT_EQ(draw(logits, 1.0, 1.0, 0.99), 2);
  EXPECT_EQ(draw(logits, 1.0, 0.5, 0.99), 1);  // the nucleus is one token
  EXPECT_EQ(draw(logits, 1e-6, 1.0, 0.99), 1);
}

TEST(Sampling, D21_a_draw_depends_on_seed_request_and_position_only) {
  EXPECT_EQ(uniform(1, 2, 3), uniform(1, 2, 3));
  EXPECT_NE(uniform(1, 2, 3), uniform(1, 2, 4));
  EXPECT_NE(uniform(1, 2, 3), uniform(1, 3, 3));
  EXPECT_NE(uniform(1, 2, 3), uniform(2, 2, 3));
  double sum = 0.0;
  for (int64_t p = 0; p < 4000; ++p) sum += uniform(7, 0, p);
  EXPECT_NEAR(sum / 4000, 0.5, 5 * std::sqrt(1.0 / 12 / 4000));  // five standard errors
}

}  // namespace
}  // namespace testbed
