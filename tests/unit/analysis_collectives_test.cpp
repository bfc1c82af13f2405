// Collectives of cp and ep groups, those whose ranks send unequal amounts, and messages whose
// arrival is known: matched, attributed and counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/errors.hpp"
#include "runtime/measure/analysis.hpp"
#include "runtime/measure/attribution.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Collectives, an_all_to_all_of_unequal_payloads_is_of_its_busiest_rank) {
  AnalysisInput input = experts_input();
  // Rank 1 comes 30 us late.
  for (CommEvent& event : input.timelines[1].comms) event.comm.post_begin_ns += us(30);
  for (OpEvent& event : input.timelines[1].ops) {
    if (event.op.kind == OpKind::linear) event.op.end_ns += us(30);
  }
  const RunRecord record = analyse(input);
  const PhaseRecord& phase = record.phases.at(0);
  ASSERT_EQ(phase.collectives.size(), 1U);
  const CollectiveRecord& c = phase.collectives[0];
  EXPECT_EQ(c.op, "all_to_all");
  EXPECT_EQ(c.axis, "ep");
  EXPECT_EQ(c.site, "experts");
  EXPECT_EQ(c.transport, "shm");
  EXPECT_EQ(c.n, 2);
  EXPECT_EQ(c.groups, 2);
  EXPECT_EQ(c.calls, 4);  // 2 groups, 2 repeats
  EXPECT_EQ(c.per_step, 1.0);
  EXPECT_FALSE(c.uniform);
  EXPECT_EQ(c.payload_bytes, (400 + 70) / 2);          // not rank 1's 50, not rank 3's 20
  EXPECT_EQ(c.wire_bytes_per_device, (300 + 70) / 2);  // without what stays
  EXPECT_EQ(c.payload_bytes_per_step, 400);
  EXPECT_DOUBLE_EQ(c.wire_us.max, 100.0);
  // Of unlike payloads there is no bandwidth to state.
  EXPECT_EQ(c.algbw_gb_s, std::nullopt);
  EXPECT_EQ(c.busbw_gb_s, std::nullopt);
  EXPECT_EQ(c.latest.at(0).rank, 1);
  EXPECT_DOUBLE_EQ(phase.per_device.at(0).wait_ms, 0.030);
  EXPECT_DOUBLE_EQ(phase.per_device.at(0).wire_ms, 0.070);
  EXPECT_EQ(phase.per_device.at(0).bubble_ms, 0.0);
  EXPECT_DOUBLE_EQ(phase.layers.at(0).wait_ms, 0.030 / 4);
  EXPECT_DOUBLE_EQ(phase.layers.at(0).wire_ms, (0.070 + 0.070 + 0.100 + 0.100) / 4);
}

TEST(Collectives, calls_whose_ranks_differ_are_not_uniform) {
  AnalysisInput input = experts_input();
  for (CommEvent& event : input.timelines[2].comms) event.comm.payload_bytes = 400;
  const CollectiveRecord c = analyse(input).phases.at(0).collectives.at(0);
  EXPECT_EQ(c.payload_bytes, 400);  // the busiest of either group
  EXPECT_FALSE(c.uniform);
  for (RankTimeline& timeline : input.timelines) {
    for (CommEvent& event : timeline.comms) event.comm.payload_bytes = 400;
  }
  EXPECT_TRUE(analyse(input).phases.at(0).collectives.at(0).uniform);
}

TEST(Collectives, messages_of_two_senders_to_one_rank_are_apart) {
  const Mesh mesh{.cp = 3};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 3; ++rank) {
    RankBuilder b(mesh, rank);
    b.at(Phase::prefill, 0, 0, Site::attention);
    if (rank == 1) {
      b.ring_message(CommOp::recv, 0, 0, 64, 0, 0, 150);
      b.ring_message(CommOp::recv, 2, 0, 64, 0, 150, 250);
    } else {
      b.ring_message(CommOp::send, 1, 0, 64, rank == 0 ? 100 : 200, 300, 300);
    }
    timelines.push_back(b.t);
  }
  const MatchedComms matched = match_comms(timelines, mesh);
  EXPECT_EQ(matched.calls.size(), 2U);
  EXPECT_EQ(matched.timings[1][0].ready_ns, us(100));
  EXPECT_EQ(matched.timings[1][1].ready_ns, us(200));
}

TEST(Collectives, an_all_to_all_that_a_rank_did_not_record_is_refused) {
  AnalysisInput input = experts_input();
  input.timelines[3].comms.pop_back();
  EXPECT_THROW(
      {
        try {
          analyse(input);
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("all_to_all 1 on axis ep of group 2"));
          throw;
        }
      },
      Error);
}

// A step of a tp group in each of two cp ranks, of which the second has twice the rows.
AnalysisInput sequence_parallel_input() {
  const Mesh mesh{.tp = 2, .cp = 2};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 4; ++rank) {
    const int64_t rows = rank < 2 ? 1 : 2;
    RankBuilder b(mesh, rank);
    b.at(Phase::prefill, 0).step(0, 0, 1000, 1000).at(Phase::prefill, 0, 0, Site::attention);
    b.op(0, 100, {.weight_bytes = 1000});
    b.collective(CommOp::reduce_scatter, Axis::tp, 0, 800 * rows, 100, 150).wire_bytes(400 * rows);
    b.collective(CommOp::all_gather, Axis::tp, 1, 600 * rows, 150, 200).wire_bytes(300 * rows);
    b.all_reduce(2, 80 * rows, 200, 250);
    b.collective(CommOp::all_gather, Axis::cp, 0, 5000, 250, 300);
    timelines.push_back(b.t);
  }
  AnalysisInput input = synthetic_input(mesh, std::move(timelines));
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::prefill, 0, 1000, 3, 1)};
  input.timed = {timing};
  return input;
}

TEST(Collectives, a_layers_exchange_is_of_the_busiest_tp_group) {
  const RunRecord record = analyse(sequence_parallel_input());
  const LayerRecord& layer = record.phases.at(0).layers.at(0);
  EXPECT_EQ(layer.reduce_scatter_payload_bytes, 1600);
  EXPECT_EQ(layer.all_gather_payload_bytes, 1200);  // over tp: not the 5000 over cp
  EXPECT_EQ(layer.all_reduce_payload_bytes, 160);
  EXPECT_EQ(layer.all_reduce_wire_bytes, 160);
  EXPECT_DOUBLE_EQ(layer.wire_ms, 0.200);  // tp's and cp's
}

TEST(Collectives, a_layers_exchange_is_of_the_replica_with_most_steps) {
  const Mesh mesh{.tp = 2, .dp = 2};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 4; ++rank) {
    const int n_steps = rank < 2 ? 1 : 2;
    RankBuilder b(mesh, rank);
    for (int step = 0; step < n_steps; ++step) {
      const double t = 1000.0 * step;
      b.at(Phase::decode, step).step(t, t, t + 1000, t + 1000).at(Phase::decode, step, 0);
      b.op(t, t + 100, {.weight_bytes = 1000});
      b.all_reduce(step, rank < 2 ? 900 : 300, t + 100, t + 200);
    }
    timelines.push_back(b.t);
  }
  AnalysisInput input = synthetic_input(mesh, std::move(timelines));
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 1000, 0, 1, 0),
                  timed_step(Phase::decode, 0, 1000, 0, 1, 1),
                  timed_step(Phase::decode, 1000, 2000, 0, 1, 1)};
  input.timed = {timing};
  EXPECT_EQ(analyse(input).phases.at(0).layers.at(0).all_reduce_payload_bytes, 300);
}

TEST(Collectives, a_reduce_scatter_is_half_an_all_reduce) {
  const RunRecord record = analyse(sequence_parallel_input());
  bool found = false;
  for (const CollectiveRecord& c : record.phases.at(0).collectives) {
    if (c.op != "reduce_scatter") continue;
    found = true;
    EXPECT_EQ(c.groups, 2);
    EXPECT_EQ(c.payload_bytes, 1200);
    EXPECT_DOUBLE_EQ(c.algbw_gb_s.value(), 1200 / 50.0 * 1e-3);
    EXPECT_DOUBLE_EQ(c.busbw_gb_s.value(), c.algbw_gb_s.value() / 2);
  }
  EXPECT_TRUE(found);
}

// Stage 1 posts at 60, is busy until 300 and finds what stage 0 sent meanwhile.
CollectiveRecord message_found(double sent, double arrived) {
  const Mesh mesh{.pp = 2};
  RankBuilder first(mesh, 0);
  first.at(Phase::prefill, 0).step(0, 0, 1000, 1000).at(Phase::prefill, 0, -1, Site::pipeline);
  first.message(CommOp::send, 1, 0, 8000, sent, sent, sent);
  RankBuilder second(mesh, 1);
  second.at(Phase::prefill, 0).step(0, 0, 1000, 1000).at(Phase::prefill, 0, -1, Site::pipeline);
  second.message(CommOp::recv, 0, 0, 8000, 60, 300, 302).arrived(arrived);
  second.op(100, 300, {.flops = 1000});
  AnalysisInput input = synthetic_input(mesh, {first.t, second.t});
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::prefill, 0, 1000, 4, 1)};
  input.timed = {timing};
  return analyse(input).phases.at(0).collectives.at(0);
}

TEST(Collectives, a_message_whose_arrival_is_known_has_a_wire_time) {
  const CollectiveRecord known = message_found(100, 180);
  EXPECT_FALSE(known.wire_is_bound);
  EXPECT_DOUBLE_EQ(known.wire_us.median, 80.0);
  EXPECT_DOUBLE_EQ(known.exposed_us, 1.0);  // 2 us of looking, of one of two ranks
  const CollectiveRecord unknown = message_found(100, 0);
  EXPECT_TRUE(unknown.wire_is_bound);
  EXPECT_DOUBLE_EQ(unknown.wire_us.median, 202.0);
  // Sent before the receiver was there: it may have been under way before that.
  EXPECT_TRUE(message_found(20, 180).wire_is_bound);
}

TEST(Collectives, the_wall_says_when_it_is_of_the_ring_or_of_the_experts) {
  const RunRecord ring = analyse(ring_input());
  EXPECT_THAT(wall_sentence(ring), HasSubstr("the interconnect takes 3 % (most over cp: "));
  RunRecord experts = analyse(experts_input());
  EXPECT_THAT(wall_sentence(experts), HasSubstr("(most over ep: tokens to experts and back)"));
  CollectiveRecord over_tp = experts.phases.at(0).collectives.at(0);
  over_tp.axis = "tp";
  over_tp.exposed_us *= 2.0;
  experts.phases.at(0).collectives.push_back(over_tp);
  EXPECT_THAT(wall_sentence(experts), Not(HasSubstr("most over")));
  experts.phases.at(0).collectives.pop_back();
  experts.phases.at(0).bound_by = "interconnect";
  EXPECT_THAT(wall_sentence(experts), HasSubstr("most of it all_to_all over ep at experts"));
}

}  // namespace
}  // namespace testbed
