#include "runtime/measure/analysis.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kernels/base/errors.hpp"
#include "runtime/measure/attribution.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

double parts_ms(const DevicePhaseRecord& d) {
  return d.weights_ms + d.kv_ms + d.compute_ms + d.wire_ms + d.wait_ms + d.bubble_ms +
         d.overhead_ms;
}

double sum(const Shares& s) {
  return s.weights + s.kv + s.compute + s.interconnect + s.wait + s.bubble + s.overhead;
}

// One rank, one decode step of [0, 1000) us holding the given op in [100, 300).
PhaseRecord phase_with_op(const OpCost& cost, OpKind kind = OpKind::linear) {
  const Mesh mesh;
  RankBuilder b(mesh, 0);
  b.at(Phase::decode, 0).step(0, 0, 1000, 1000);
  b.op(100, 300, cost, kind);
  AnalysisInput input = synthetic_input(mesh, {b.t});
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 1000, 0, 1)};
  input.timed = {timing};
  return analyse(input).phases.at(0);
}

TEST(Analysis, memory_time_is_split_by_bytes_and_the_excess_is_overhead) {
  // 120,000 bytes at 1 GB/s: 120 us, of which 3/4 weights; the op took 200. Writes are not reads.
  const PhaseRecord phase = phase_with_op(
      {.flops = 50000, .weight_bytes = 90000, .kv_bytes = 30000, .kv_write_bytes = 10000});
  const DevicePhaseRecord& d = phase.per_device.at(0);
  EXPECT_DOUBLE_EQ(d.weights_ms, 0.090);
  EXPECT_DOUBLE_EQ(d.kv_ms, 0.030);
  EXPECT_EQ(d.compute_ms, 0.0);
  EXPECT_DOUBLE_EQ(d.overhead_ms, 0.880);
  EXPECT_DOUBLE_EQ(d.step_ms, 1.0);
  EXPECT_EQ(phase.bound_by, "overhead");
  EXPECT_EQ(phase.weight_bytes, 90000);
  EXPECT_EQ(phase.kv_bytes, 30000);
  EXPECT_EQ(phase.kv_write_bytes, 10000);
}

TEST(Analysis, the_larger_term_takes_the_time) {
  const DevicePhaseRecord d =
      phase_with_op({.flops = 150000, .weight_bytes = 90000}).per_device.at(0);
  EXPECT_DOUBLE_EQ(d.compute_ms, 0.150);
  EXPECT_EQ(d.weights_ms, 0.0);
}

TEST(Analysis, an_op_faster_than_its_bound_is_all_useful) {
  const DevicePhaseRecord d = phase_with_op({.weight_bytes = 400000}).per_device.at(0);
  EXPECT_DOUBLE_EQ(d.weights_ms, 0.200);
  EXPECT_DOUBLE_EQ(d.overhead_ms, 0.800);
}

TEST(Analysis, activation_traffic_is_neither_weights_nor_kv) {
  // A norm: its weight takes 1 us at 1 GB/s, its activations the rest.
  const DevicePhaseRecord d =
      phase_with_op({.weight_bytes = 1000, .activation_bytes = 100000}, OpKind::norm)
          .per_device.at(0);
  EXPECT_DOUBLE_EQ(d.weights_ms, 0.001);
  EXPECT_DOUBLE_EQ(d.overhead_ms, 0.999);
}

TEST(Analysis, D31_wait_and_wire_are_apart_and_the_late_rank_is_named) {
  const RunRecord record = analyse(late_rank_input());
  const PhaseRecord& phase = record.phases.at(0);
  ASSERT_EQ(phase.phase, Phase::decode);
  const DevicePhaseRecord& punctual = phase.per_device.at(0);
  const DevicePhaseRecord& late = phase.per_device.at(1);
  EXPECT_DOUBLE_EQ(punctual.wait_ms, 5.0);
  EXPECT_DOUBLE_EQ(punctual.wire_ms, 0.9);
  EXPECT_DOUBLE_EQ(late.wire_ms, 0.9);
  // Of the late rank: no wait in the collective, but for its first plan and its next one.
  EXPECT_DOUBLE_EQ(late.wait_ms, 0.1 + 1.9);

  const CollectiveRecord& c = phase.collectives.at(0);
  EXPECT_EQ(c.op, "all_reduce");
  EXPECT_EQ(c.site, "attention");
  EXPECT_EQ(c.algorithm, "two-shot");
  EXPECT_EQ(c.transport, "shm");
  EXPECT_EQ(c.per_step, 1.0);
  EXPECT_EQ(c.payload_bytes, 800);
  EXPECT_EQ(c.wire_bytes_per_device, 800);
  EXPECT_DOUBLE_EQ(c.wait_us.value(),
                   5000.0);  // the last rank, who waits for nobody, is not averaged in
  EXPECT_DOUBLE_EQ(c.wire_us.median, 900.0);
  EXPECT_DOUBLE_EQ(c.exposed_us, 900.0);
  EXPECT_DOUBLE_EQ(c.algbw_gb_s.value(), 800.0 / 900e-6 * 1e-9);
  EXPECT_DOUBLE_EQ(c.busbw_gb_s.value(), c.algbw_gb_s.value());  // 2(n-1)/n = 1
  ASSERT_EQ(c.latest.size(), 1U);
  EXPECT_EQ(c.latest[0].rank, 1);
  EXPECT_EQ(c.latest[0].count, 1);
  EXPECT_DOUBLE_EQ(c.latest[0].median_us, 5000.0);
}

TEST(Analysis, D31_rarely_but_very_late_outranks_often_but_hardly) {
  const Mesh mesh{.tp = 2};
  RankBuilder a(mesh, 0);
  RankBuilder b(mesh, 1);
  for (RankBuilder* r : {&a, &b}) r->at(Phase::decode, 0).step(0, 0, 20000, 20000);
  for (int i = 0; i < 10; ++i) {
    const double t = 1000.0 * i;
    const bool delayed = i == 9;
    a.all_reduce(i, 8, t + (delayed ? 0 : 2), t + 6000);
    b.all_reduce(i, 8, t + (delayed ? 5000 : 0), t + 6000);
    a.t.comms.back().comm.post_end_ns = a.t.comms.back().comm.post_begin_ns + 10;
    b.t.comms.back().comm.post_end_ns = b.t.comms.back().comm.post_begin_ns + 10;
    for (RankBuilder* r : {&a, &b}) {
      CommRecord& c = r->t.comms.back().comm;
      c.wait_begin_ns = c.wait_end_ns = c.post_end_ns;
    }
  }
  AnalysisInput input = synthetic_input(mesh, {a.t, b.t});
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 20000, 0, 1)};
  input.timed = {timing};
  const RunRecord record = analyse(input);
  const auto& latest = record.phases.at(0).collectives.at(0).latest;
  ASSERT_EQ(latest.size(), 2U);
  EXPECT_EQ(latest[0].rank, 1);
  EXPECT_EQ(latest[0].count, 1);
  EXPECT_EQ(latest[1].rank, 0);
  EXPECT_EQ(latest[1].count, 9);
  EXPECT_DOUBLE_EQ(latest[1].median_us, 2.0);
}

TEST(Analysis, the_seven_parts_tile_every_step_whatever_happens) {
  const Mesh mesh{.tp = 2};
  std::mt19937 random(3);  // NOLINT: a fixed seed is the point
  std::uniform_int_distribution<int64_t> gap(0, 50000);
  std::uniform_int_distribution<int64_t> n_bytes(0, 60000);
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 2; ++rank) {
    RankBuilder b(mesh, rank);
    int64_t now = gap(random);
    for (int step = 0; step < 20; ++step) {
      const Phase phase = step % 5 == 0 ? Phase::prefill : Phase::decode;
      b.at(phase, step);
      StepEvent event{.phase = phase, .step = step, .begin_ns = now};
      event.plan_ns = now += gap(random);
      for (int i = 0; i < 8; ++i) {
        const double begin = static_cast<double>(now += gap(random)) / 1e3;
        const double end = static_cast<double>(now += gap(random)) / 1e3;
        b.op(begin,
             end,
             {.flops = n_bytes(random),
              .weight_bytes = n_bytes(random),
              .kv_bytes = n_bytes(random),
              .activation_bytes = n_bytes(random)});
        const double post = static_cast<double>(now += gap(random)) / 1e3;
        b.all_reduce(100 * step + i, 64, post, static_cast<double>(now += gap(random)) / 1e3);
      }
      event.work_end_ns = now += gap(random);
      event.end_ns = now += gap(random);
      b.t.steps.push_back(event);
    }
    timelines.push_back(b.t);
  }
  const MatchedComms matched = match_comms(timelines, mesh);
  for (size_t r = 0; r < timelines.size(); ++r) {
    const auto pieces = attribute(timelines[r], matched.timings[r], {1e9, 1e9}, false);
    for (const TimePiece& piece : pieces) EXPECT_GE(piece.end_ns, piece.begin_ns);  // D24
    const auto steps = step_parts(timelines[r], pieces);
    ASSERT_EQ(steps.size(), 20U);
    for (const StepParts& step : steps) {
      int64_t total = 0;
      for (const int64_t ns : step.part_ns) {
        EXPECT_GE(ns, 0);
        total += ns;
      }
      EXPECT_EQ(total, step.window_ns);
    }
  }
  AnalysisInput input = synthetic_input(mesh, timelines);
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::prefill, 0, 1e6, 4, 1),
                  timed_step(Phase::decode, 0, 1e6, 0, 1)};
  input.timed = {timing};
  for (const PhaseRecord& phase : analyse(input).phases) {
    EXPECT_NEAR(sum(phase.shares), 1.0, 1e-9);
    for (const DevicePhaseRecord& d : phase.per_device) {
      EXPECT_NEAR(parts_ms(d), d.step_ms, 1e-9 * d.step_ms);
    }
  }
}

TEST(Analysis, events_that_overlap_are_refused) {
  AnalysisInput input = late_rank_input();
  input.timelines[0].ops[0].op.end_ns = us(2200);
  EXPECT_THROW(analyse(input), Error);
}

TEST(Analysis, stamps_of_two_clocks_overlap_by_what_they_are_known_to) {
  AnalysisInput input = late_rank_input();
  const int64_t overlap_ns = us(2200) - input.timelines[0].ops[0].op.end_ns;
  input.timelines[0].ops[0].op.end_ns = us(2200);
  input.timelines[0].stamp_error_ns = overlap_ns;
  EXPECT_NO_THROW(analyse(input));
  input.timelines[0].stamp_error_ns = overlap_ns / 100;
  EXPECT_THROW(analyse(input), Error);
}

// A device's stamps are never exact, not even to itself: that the last rank did not wait is known
// all the same.
TEST(Analysis, the_last_to_arrive_leaves_no_wait_unresolved) {
  AnalysisInput input = late_rank_input();
  for (RankTimeline& timeline : input.timelines) timeline.stamp_error_ns = us(10);
  const RunRecord record = analyse(input);
  const CollectiveRecord& collective = record.phases.at(0).collectives.at(0);
  EXPECT_EQ(collective.unresolved, 0);
  EXPECT_DOUBLE_EQ(collective.wait_us.value(), 5000.0);
}

TEST(Analysis, a_collective_that_a_rank_did_not_record_is_refused) {
  AnalysisInput input = late_rank_input();
  input.timelines[1].comms.clear();
  EXPECT_THROW(
      {
        try {
          analyse(input);
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("all_reduce 7 on axis tp"));
          throw;
        }
      },
      Error);
}

TEST(Analysis, D24_durations_are_never_negative_across_skewed_clocks) {
  AnalysisInput input = late_rank_input();
  // Rank 1 seems to arrive after the collective ended: all of it is wait, none negative.
  input.timelines[1].clock_offset_ns = us(3000);
  const RunRecord record = analyse(input);
  const DevicePhaseRecord& d = record.phases.at(0).per_device.at(0);
  EXPECT_DOUBLE_EQ(d.wait_ms, 5.9);
  EXPECT_EQ(d.wire_ms, 0.0);
}

TEST(Analysis, D24_stamps_of_other_hosts_are_brought_to_one_clock) {
  AnalysisInput input = late_rank_input();
  RankTimeline& other = input.timelines[1];
  other.host = "host1";
  other.clock_error_ns = us(10);
  // host1's clock is 1 s ahead.
  const int64_t ahead = 1000000000;
  other.clock_offset_ns = -ahead;
  for (StepEvent& s : other.steps) {
    s.begin_ns += ahead;
    s.plan_ns += ahead;
    s.work_end_ns += ahead;
    s.end_ns += ahead;
  }
  for (OpEvent& e : other.ops) {
    e.op.begin_ns += ahead;
    e.op.end_ns += ahead;
  }
  for (CommEvent& e : other.comms) {
    e.comm.post_begin_ns += ahead;
    e.comm.post_end_ns += ahead;
    e.comm.wait_begin_ns += ahead;
    e.comm.wait_end_ns += ahead;
  }
  EXPECT_DOUBLE_EQ(analyse(input).phases.at(0).per_device.at(0).wait_ms, 5.0);

  // Below the clocks' error a wait is not told: it stays wire, and the record says so.
  other.clock_error_ns = us(6000);
  const RunRecord record = analyse(input);
  EXPECT_EQ(record.phases.at(0).per_device.at(0).wait_ms, 0.0);
  EXPECT_DOUBLE_EQ(record.phases.at(0).per_device.at(0).wire_ms, 5.9);
  EXPECT_EQ(record.phases.at(0).collectives.at(0).unresolved, 1);
  EXPECT_TRUE(record.phases.at(0).collectives.at(0).latest.empty());
  EXPECT_THAT(record.run.labels, testing::Contains(HasSubstr("clock error")));
}

// Two stages; stage 1 waits for its plan, then receives what stage 0 sends at 400 us.
AnalysisInput pipeline_input() {
  const Mesh mesh{.pp = 2};
  RankBuilder first(mesh, 0);
  first.at(Phase::prefill, 0, 0).step(0, 10, 1000, 1000);
  first.op(100, 400, {.flops = 300000, .model_flops = 300000, .weight_bytes = 100});
  first.at(Phase::prefill, 0, -1, Site::pipeline);
  first.message(CommOp::send, 1, 0, 4096, 400, 400, 420);
  RankBuilder second(mesh, 1);
  second.at(Phase::prefill, 0, -1, Site::pipeline).step(0, 50, 950, 1000);
  second.message(CommOp::recv, 0, 0, 4096, 60, 60, 450);
  second.at(Phase::prefill, 0, 1);
  second.op(450, 900, {.flops = 450000, .model_flops = 450000, .weight_bytes = 100});
  AnalysisInput input = synthetic_input(mesh, {first.t, second.t});
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::prefill, 0, 1000, 4, 1)};
  input.timed = {timing};
  return input;
}

TEST(Analysis, a_receive_is_bubble_until_the_sender_posted) {
  const RunRecord record = analyse(pipeline_input());
  const PhaseRecord& phase = record.phases.at(0);
  const DevicePhaseRecord& second = phase.per_device.at(1);
  EXPECT_DOUBLE_EQ(second.wire_ms, 0.050);
  EXPECT_DOUBLE_EQ(second.bubble_ms, 0.340 + 0.050 + 0.050);  // receive, and no plan
  EXPECT_DOUBLE_EQ(phase.per_device.at(0).wire_ms, 0.020);
  EXPECT_EQ(phase.per_device.at(0).bubble_ms, 0.0);

  ASSERT_TRUE(phase.pipeline.has_value());
  const PipelineRecord& pipeline = *phase.pipeline;
  EXPECT_TRUE(pipeline.flushed);
  EXPECT_DOUBLE_EQ(pipeline.bubble_measured, (0.0 + 0.44) / 2);
  EXPECT_DOUBLE_EQ(pipeline.bubble_formula.value(), 0.5);  // P 2, M 1
  ASSERT_EQ(pipeline.stages.size(), 2U);
  EXPECT_THAT(pipeline.stages[0].layers, ElementsAre(0));
  EXPECT_THAT(pipeline.stages[1].layers, ElementsAre(1));
  for (const StageRecord& s : pipeline.stages) {
    EXPECT_NEAR(s.busy_ms + s.transfer_ms + s.idle_ms, 1.0, 1e-12);
  }
  EXPECT_DOUBLE_EQ(pipeline.stages[1].idle_ms, 0.44);
  EXPECT_DOUBLE_EQ(pipeline.stages[1].transfer_ms, 0.05);

  const CollectiveRecord& c = phase.collectives.at(0);
  EXPECT_EQ(c.op, "send_recv");
  EXPECT_EQ(c.payload_bytes, 4096);
  EXPECT_EQ(c.wire_bytes_per_device, 4096);
  EXPECT_DOUBLE_EQ(c.wire_us.median, 50.0);
  EXPECT_FALSE(c.wire_is_bound);
  EXPECT_DOUBLE_EQ(c.busbw_gb_s.value(), c.algbw_gb_s.value());
}

TEST(Analysis, hidden_states_and_ids_may_share_sequence_numbers) {
  AnalysisInput input = pipeline_input();
  const Mesh mesh = input.mesh;
  RankBuilder back0(mesh, 0);
  back0.at(Phase::prefill, 0, -1, Site::token_ids).message(CommOp::recv, 1, 0, 4, 500, 500, 930);
  RankBuilder back1(mesh, 1);
  back1.at(Phase::prefill, 0, -1, Site::token_ids).message(CommOp::send, 0, 0, 4, 910, 910, 911);
  RankBuilder wrap0(mesh, 0);
  wrap0.at(Phase::prefill, 0, -1, Site::pipeline).message(CommOp::recv, 1, 0, 4096, 930, 930, 940);
  RankBuilder wrap1(mesh, 1);
  wrap1.at(Phase::prefill, 0, -1, Site::pipeline).message(CommOp::send, 0, 0, 4096, 912, 912, 913);
  for (const auto* b : {&back0, &wrap0}) input.timelines[0].comms.push_back(b->t.comms[0]);
  for (const auto* b : {&back1, &wrap1}) input.timelines[1].comms.push_back(b->t.comms[0]);
  const RunRecord record = analyse(input);
  EXPECT_DOUBLE_EQ(record.phases.at(0).per_device.at(0).bubble_ms, 0.410);
}

TEST(Analysis, waiting_for_a_plan_is_wait_in_a_tp_group_and_bubble_in_a_pipeline) {
  const RankTimeline leader = [] {
    RankBuilder b(Mesh{.tp = 2}, 0);
    b.at(Phase::decode, 0).step(0, 30, 80, 100);
    return b.t;
  }();
  RankTimeline follower = leader;
  follower.coordinates.tp = 1;
  const auto parts = [](const RankTimeline& t, bool pipelined) {
    return step_parts(t, attribute(t, {}, {1e9, 1e9}, pipelined)).at(0);
  };
  const auto part = [](const StepParts& p, Part which) {
    return p.part_ns[static_cast<int>(which)];
  };
  EXPECT_EQ(part(parts(leader, false), Part::overhead), us(100));
  EXPECT_EQ(part(parts(follower, false), Part::wait), us(50));
  EXPECT_EQ(part(parts(follower, true), Part::bubble), us(50));
}

TEST(Analysis, layers_hold_their_bytes_and_their_all_reduces) {
  const Mesh mesh{.tp = 2};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 2; ++rank) {
    RankBuilder b(mesh, rank);
    b.at(Phase::decode, 0).step(0, 0, 1000, 1000);
    double t = 0.0;
    for (int layer = 0; layer < 2; ++layer) {
      for (int mb = 0; mb < 2; ++mb) {
        b.at(Phase::decode, 0, layer, Site::attention, mb);
        b.op(t, t + 50, {.weight_bytes = 10000 * (layer + 1), .kv_bytes = 500});
        b.all_reduce(4 * layer + mb, 256, t + 50, t + 60);
        t += 60;
      }
    }
    b.at(Phase::decode, 0, -1, Site::head).op(t, t + 10, {.weight_bytes = 7000});
    timelines.push_back(b.t);
  }
  AnalysisInput input = synthetic_input(mesh, std::move(timelines));
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 1000, 0, 2)};
  input.timed = {timing};
  const RunRecord record = analyse(input);
  const PhaseRecord& phase = record.phases.at(0);
  ASSERT_EQ(phase.layers.size(), 2U);
  EXPECT_EQ(phase.layers[1].layer, 1);
  EXPECT_EQ(phase.layers[1].weight_bytes, 2 * 2 * 20000);  // devices, microbatches
  EXPECT_EQ(phase.layers[1].kv_bytes, 2 * 2 * 500);
  EXPECT_EQ(phase.layers[1].all_reduce_payload_bytes, 2 * 256);  // one tp group
  EXPECT_EQ(phase.layers[1].all_reduce_wire_bytes, 2 * 256);
  EXPECT_DOUBLE_EQ(phase.layers[1].memory_ms, 2 * 0.0205);
  EXPECT_DOUBLE_EQ(phase.layers[1].wire_ms, 0.020);
  ASSERT_TRUE(phase.outside_layers.has_value());
  EXPECT_EQ(phase.outside_layers->weight_bytes, 14000);
  EXPECT_EQ(phase.weight_bytes,
            phase.layers[0].weight_bytes + phase.layers[1].weight_bytes + 14000);
  EXPECT_EQ(phase.collectives.at(0).per_step, 4.0);
  EXPECT_EQ(phase.collectives.at(0).payload_bytes_per_step, 4 * 256);
}

TEST(Analysis, D26_rates_are_apart_and_tpot_needs_two_tokens) {
  AnalysisInput input = late_rank_input();
  GenerationTiming& timing = input.timed[0];
  timing.steps = {timed_step(Phase::prefill, 0, 2000, 512, 1),
                  timed_step(Phase::decode, 2000, 8000, 0, 3)};
  const RunRecord record = analyse(input);
  EXPECT_DOUBLE_EQ(record.timing.ttft_ms.median(), 2.0);
  EXPECT_DOUBLE_EQ(record.timing.tpot_ms.median(), 2.0);  // (8 - 2) / (4 - 1)
  EXPECT_DOUBLE_EQ(record.timing.prefill_tokens_per_s.median(), 256000.0);
  EXPECT_DOUBLE_EQ(record.timing.decode_tokens_per_s.median(), 500.0);
  EXPECT_EQ(record.timing.step_phase, "decode");
  EXPECT_DOUBLE_EQ(record.run.requests.at(0).tpot_ms.value(), 2.0);

  timing.requests[0].n_generated = 1;
  timing.requests[0].last_token_ns = timing.requests[0].first_token_ns;
  const RunRecord one = analyse(input);
  EXPECT_TRUE(one.timing.tpot_ms.empty());
  EXPECT_FALSE(one.run.requests.at(0).tpot_ms.has_value());
  EXPECT_TRUE(one.run.requests.at(0).ttft_ms.has_value());
}

TEST(Analysis, D26_replicas_run_at_once) {
  const Mesh mesh{.dp = 2};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 2; ++rank) {
    RankBuilder b(mesh, rank);
    b.at(Phase::decode, 0).step(0, 0, 1000, 1000).op(0, 500, {.weight_bytes = 1000});
    timelines.push_back(b.t);
  }
  AnalysisInput input = synthetic_input(mesh, std::move(timelines));
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 1000, 0, 4, 0),
                  timed_step(Phase::decode, 0, 2000, 0, 4, 1)};
  input.timed = {timing};
  const RunRecord record = analyse(input);
  EXPECT_DOUBLE_EQ(record.timing.decode_tokens_per_s.median(), 8 / 2e-3);
  EXPECT_EQ(record.phases.at(0).weight_bytes, 2000);  // per step, all devices
  EXPECT_EQ(record.phases.at(0).steps, 1);
}

TEST(Analysis, rates_of_unequal_replicas_take_the_longest) {
  const Mesh mesh{.dp = 2};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 2; ++rank) {
    RankBuilder b(mesh, rank);
    for (int step = 0; step < 2 - rank; ++step) {  // replica 1 has one step, replica 0 two
      const double begin = 1000.0 * step;
      b.at(Phase::decode, step).step(begin, begin, begin + 1000, begin + 1000);
      b.op(begin, begin + 500, {.flops = 1000, .model_flops = 1000, .weight_bytes = 4000});
    }
    timelines.push_back(b.t);
  }
  AnalysisInput input = synthetic_input(mesh, std::move(timelines));
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 1000, 0, 1, 0),
                  timed_step(Phase::decode, 1000, 2000, 0, 1, 0),
                  timed_step(Phase::decode, 0, 1000, 0, 1, 1)};
  input.timed = {timing};
  const RunRecord record = analyse(input);
  const PhaseRecord& phase = record.phases.at(0);
  EXPECT_DOUBLE_EQ(phase.duration_s.median(), 2e-3);
  EXPECT_EQ(phase.weight_bytes_total, 12000);
  double peak_flops = 0.0;
  for (const PeakRecord& peak : record.peaks) peak_flops += peak.peak_flops;
  EXPECT_DOUBLE_EQ(phase.mfu.value(), 3000 / (2e-3 * peak_flops));
  EXPECT_DOUBLE_EQ(phase.roofline->achieved_flops, 3000 / 2e-3);
}

TEST(Analysis, D27_an_mfu_above_100_percent_is_an_error) {
  AnalysisInput input = late_rank_input();
  for (RankTimeline& t : input.timelines) t.ops[0].op.cost.model_flops = 9000000;
  EXPECT_THROW(
      {
        try {
          analyse(input);
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("MFU above 100 %"));
          throw;
        }
      },
      Error);
}

// Replicas on too few cores take turns: the longest one's time is not the time of all.
TEST(Analysis, D27_an_mfu_above_100_percent_of_ranks_that_take_turns_is_null) {
  AnalysisInput input = late_rank_input();
  for (RankTimeline& t : input.timelines) t.ops[0].op.cost.model_flops = 9000000;
  input.run.labels = {"oversubscribed: 8 ranks x 1 threads on 2 cores"};
  EXPECT_FALSE(analyse(input).phases.front().mfu.has_value());
}

TEST(Analysis, efficiency_is_against_the_timed_step) {
  AnalysisInput input = late_rank_input();
  input.peaks[0].read_bytes_per_s = {0.5e9, 1e9, 4e9};
  input.peaks[1].read_bytes_per_s = {0.5e9, 1e9, 1e9};
  const RunRecord record = analyse(input);
  const PhaseRecord& phase = record.phases.at(0);
  EXPECT_DOUBLE_EQ(phase.step_ms.median(), 8.0);
  EXPECT_DOUBLE_EQ(phase.mbu.value(), 2e6 / (8e-3 * 2e9));
  EXPECT_DOUBLE_EQ(phase.mfu.value(), 2000 / (8e-3 * 2e9));
  EXPECT_DOUBLE_EQ(phase.instrument_overhead.value(), 10.0 / 8.0 - 1.0);
  EXPECT_DOUBLE_EQ(phase.roofline->intensity_flop_per_byte, 1e-3);
  EXPECT_DOUBLE_EQ(phase.roofline->ridge_flop_per_byte, 1.0);
  EXPECT_DOUBLE_EQ(phase.roofline->attainable_flops, 2e6);
  EXPECT_EQ(phase.roofline->regime, "memory");
  ASSERT_EQ(record.peaks.size(), 1U);
  EXPECT_THAT(record.peaks[0].read_bytes_per_s.repeats, ElementsAre(1e9, 2e9, 5e9));
}

TEST(Analysis, a_working_set_that_fits_the_cache_has_no_mbu) {
  AnalysisInput input = late_rank_input();
  for (RankPeaks& peaks : input.peaks) peaks.llc_bytes = 500001;
  const RunRecord record = analyse(input);
  EXPECT_FALSE(record.phases.at(0).mbu.has_value());
  EXPECT_TRUE(record.phases.at(0).cache_resident);
  EXPECT_THAT(record.run.labels, testing::Contains("cache-resident"));
  for (RankPeaks& peaks : input.peaks) peaks.llc_bytes = 500000;
  EXPECT_TRUE(analyse(input).phases.at(0).mbu.has_value());
}

TEST(Analysis, D35_a_group_of_one_has_no_bus_bandwidth_and_no_wire) {
  const Mesh mesh;
  RankBuilder b(mesh, 0);
  b.at(Phase::decode, 0).step(0, 0, 100, 100).all_reduce(0, 64, 10, 11);
  AnalysisInput input = synthetic_input(mesh, {b.t});
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 100, 0, 1)};
  input.timed = {timing};
  const RunRecord record = analyse(input);
  const CollectiveRecord& c = record.phases.at(0).collectives.at(0);
  EXPECT_FALSE(c.busbw_gb_s.has_value());
  EXPECT_FALSE(c.algbw_gb_s.has_value());
  EXPECT_EQ(c.transport, "none");
  EXPECT_EQ(record.phases.at(0).per_device.at(0).wire_ms, 0.0);
}

TEST(Analysis, the_wall_is_named) {
  RunRecord record = analyse(late_rank_input());
  EXPECT_THAT(wall_sentence(record), HasSubstr("Decode is bound by overhead: "));
  PhaseRecord& phase = record.phases.at(0);
  phase.shares = {
      .weights = 0.64, .kv = 0.07, .interconnect = 0.12, .wait = 0.05, .overhead = 0.12};
  phase.bound_by = "memory";
  EXPECT_THAT(
      wall_sentence(record),
      HasSubstr("Decode is bound by memory: 71 % of device time reads weights (64 %) and KV "
                "(7 %); the interconnect takes 12 %, waiting 5 %, overhead 12 %."));
  phase.bound_by = "interconnect";
  EXPECT_THAT(wall_sentence(record),
              HasSubstr("most of it all_reduce over tp at attention (two-shot, shm)"));
  phase.bound_by = "wait";
  EXPECT_THAT(wall_sentence(record), HasSubstr("rank 1 (last 1 times, by 5000 us)"));
  EXPECT_EQ(wall_sentence(RunRecord{}), "No step ran: there is no wall to name.");
}

TEST(Timeline, survives_the_wire) {
  const RankTimeline before = late_rank_input().timelines[1];
  const RankTimeline after = parse_timeline(serialise(before));
  EXPECT_EQ(after.rank, 1);
  EXPECT_EQ(after.host, "host0");
  EXPECT_EQ(after.coordinates, before.coordinates);
  ASSERT_EQ(after.ops.size(), 1U);
  EXPECT_EQ(after.ops[0].op.cost, before.ops[0].op.cost);
  EXPECT_EQ(after.comms.at(0).comm.sequence, 7);
  EXPECT_EQ(after.steps.at(0).work_end_ns, us(8100));
  Bytes cut = serialise(before);
  cut.resize(cut.size() - 1);
  EXPECT_THROW(parse_timeline(cut), std::logic_error);
}

}  // namespace
}  // namespace testbed
