// Plans: what a step computes, without a device.
#include "runtime/serving/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/serving/sampler.hpp"
#include "tests/unit/serving_cases.hpp"

namespace testbed {
namespace {

using ::testing::ElementsAre;

SchedulerOptions options(int n_microbatches = 1) {
  return {.kv_groups = {{.window = 0, .layers = {0}}},
          .block_size = 4,
          .n_microbatches = n_microbatches,
          .stop_ids = {}};
}

TEST(Scheduler, prefill_then_one_row_per_request_and_step) {
  Scheduler scheduler({request_of(0, 5, 3), request_of(1, 1, 2)}, options());
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
  Scheduler scheduler({request_of(0, 10, 2)}, options(4));
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
  Scheduler scheduler({request_of(0, 12, 1), request_of(1, 6, 1)}, chunked);
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
  Scheduler scheduler({request_of(0, 2, 4), request_of(1, 2, 4)}, ahead);
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
  Scheduler scheduler({request_of(0, 2, 9)}, ahead);
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
  Scheduler scheduler({request_of(3, 5, 3), request_of(4, 2, 2)}, options(2));
  const StepPlan plan = *scheduler.next();
  const StepPlan copy = parse_step_plan(serialise(plan));
  EXPECT_EQ(serialise(copy), serialise(plan));
  ASSERT_EQ(copy.microbatches.size(), 2U);
  EXPECT_EQ(copy.microbatches[1].sequences[0].request, 4);
  EXPECT_EQ(copy.microbatches[0].sequences[0].block_tables,
            plan.microbatches[0].sequences[0].block_tables);
}

TEST(Scheduler, plans_of_a_cp_group_and_empty_microbatches_survive_the_trip) {
  SchedulerOptions split = options();
  split.cp = 2;
  Scheduler scheduler({request_of(0, 9, 2)}, split);
  StepPlan plan = *scheduler.next();
  plan.microbatches.emplace_back();
  const StepPlan copy = parse_step_plan(serialise(plan));
  ASSERT_EQ(copy.microbatches.size(), 2U);
  EXPECT_TRUE(copy.microbatches[0].sequences[0].split);
  EXPECT_THAT(copy.microbatches[0].sequences[0].owners, ElementsAre(0, 1, 1));
  EXPECT_EQ(copy.microbatches[1].n_rows(), 0);
  EXPECT_TRUE(copy.microbatches[1].sequences.empty());
}

TEST(KvBlocks, a_window_keeps_only_what_it_sees) {
  SchedulerOptions windowed = options();
  windowed.kv_groups = {{.window = 6, .layers = {0}}};
  windowed.max_step_tokens = 4;
  const std::vector<Request> requests = {request_of(0, 40, 10)};
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
  Scheduler scheduler({request_of(0, 5, 1), request_of(1, 1, 1)}, options());
  scheduler.next();
  EXPECT_EQ(scheduler.peak_usage(0, 0).blocks, 3);  // 2 + 1 blocks of 4
  EXPECT_EQ(scheduler.peak_usage(0, 0).tokens, 6);
}

TEST(KvBlocks, blocks_for_is_what_the_job_needs) {
  Draws draw(3);
  for (int trial = 0; trial < 300; ++trial) {
    Job job = random_job(draw);
    job.options.pool_blocks = blocks_for(job.requests, job.options);
    Scheduler scheduler(job.requests, job.options);  // CHECKs that it does with them
    std::vector<int64_t> needed(job.options.kv_groups.size(), 0);
    while (const auto plan = scheduler.next()) {
      for (const MicrobatchPlan& mb : plan->microbatches) {
        for (const PlanSequence& s : mb.sequences) {
          for (size_t g = 0; g < needed.size(); ++g) {
            for (const int32_t block : s.block_tables[g]) {
              needed[g] = std::max<int64_t>(needed[g], block + 1);
            }
          }
        }
      }
      scheduler.update(plan->step, ids_for(*plan, 1));
    }
    ASSERT_EQ(needed, job.options.pool_blocks) << "trial " << trial;
  }
}

TEST(KvBlocks, requests_that_stop_early_need_no_more) {
  Draws draw(4);
  for (int trial = 0; trial < 300; ++trial) {
    Job job = random_job(draw);
    job.options.stop_ids = {1};
    job.options.pool_blocks = blocks_for(job.requests, job.options);
    Scheduler scheduler(job.requests, job.options);
    std::optional<StepPlan> out;
    while (std::optional<StepPlan> plan = scheduler.next()) {
      std::vector<int32_t> ids = ids_for(*plan, 2);
      if (out) scheduler.update(out->step, ids_for(*out, draw(0, 9) == 0 ? 1 : 2));
      out = std::move(plan);
      if (out->phase == Phase::prefill || !job.options.run_ahead) {
        scheduler.update(out->step, ids_for(*out, draw(0, 9) == 0 ? 1 : 2));
        out.reset();
      }
    }
    if (out) scheduler.update(out->step, ids_for(*out, 2));
    for (size_t r = 0; r < scheduler.n_requests(); ++r) {
      EXPECT_LE(static_cast<int64_t>(scheduler.generated(r).size()),
                job.requests[r].max_new_tokens);
    }
  }
}

TEST(KvBlocks, cp_ranks_share_the_blocks_of_a_prompt_and_of_what_follows) {
  SchedulerOptions split = options();
  split.cp = 4;
  Scheduler scheduler({request_of(0, 64, 17)}, split);
  const StepPlan prefill = *scheduler.next();
  const PlanSequence& s = prefill.microbatches[0].sequences[0];
  EXPECT_TRUE(s.split);
  EXPECT_THAT(s.owners, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1, 0, 0));
  std::vector<int32_t> owners;
  scheduler.update(0, ids_for(prefill, 7));
  while (const auto plan = scheduler.next()) {
    EXPECT_FALSE(plan->microbatches[0].sequences[0].split);
    owners = plan->microbatches[0].sequences[0].owners;
    scheduler.update(plan->step, ids_for(*plan, 7));
  }
  owners.erase(owners.begin(), owners.begin() + 16);
  EXPECT_THAT(owners, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(blocks_for({request_of(0, 64, 17)}, split), ElementsAre(5));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(scheduler.peak_usage(rank, 0).tokens, 20);
}

TEST(KvBlocks, a_block_begun_by_an_earlier_chunk_stays_its_owners) {
  SchedulerOptions chunked = options();
  chunked.cp = 2;
  chunked.cp_placement = CpPlacement::contiguous;
  chunked.max_step_tokens = 6;  // 1.5 blocks
  Scheduler scheduler({request_of(0, 14, 1)}, chunked);
  std::vector<std::vector<int32_t>> owners;
  while (const auto plan = scheduler.next()) {
    owners.push_back(plan->microbatches[0].sequences[0].owners);
    scheduler.update(plan->step, ids_for(*plan, 7));
  }
  // Chunks of 6, 6 and 2 rows add 2, 1 and 1 blocks.
  EXPECT_THAT(owners,
              ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1, 0), ElementsAre(0, 1, 0, 0)));
}

TEST(KvBlocks, window_groups_need_their_window_and_the_step_at_hand) {
  SchedulerOptions windowed = options();
  windowed.kv_groups = {{.window = 9, .layers = {0}}, {.window = 0, .layers = {1}}};
  windowed.max_step_tokens = 64;
  // Prompts are computed one by one: the second one whole, and 8 positions of the first.
  EXPECT_THAT(blocks_for({request_of(0, 64, 4), request_of(1, 64, 4)}, windowed),
              ElementsAre(16 + 2, 2 * 17));
}

TEST(KvBlocks, requests_that_are_done_make_room) {
  SchedulerOptions one_by_one = options();
  one_by_one.max_step_tokens = 16;
  EXPECT_THAT(blocks_for({request_of(0, 16, 1), request_of(1, 16, 1)}, one_by_one), ElementsAre(4));
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
