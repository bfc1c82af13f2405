// What of ring attention's transfers ran under computation: timelines with known answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/measure/analysis.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

std::vector<RingStepRecord> ring_of(const AnalysisInput& input) {
  return analyse(input).phases.at(0).ring;
}
CommEvent& comm(AnalysisInput& input, size_t rank, size_t event) {
  return input.timelines.at(rank).comms.at(event);
}

TEST(Ring, transfer_under_computation_is_hidden_and_the_rest_exposed) {
  const std::vector<RingStepRecord> ring = ring_of(ring_input());
  ASSERT_EQ(ring.size(), 2U);
  const RingStepRecord& s = ring[0];
  EXPECT_EQ(s.step, 0);
  EXPECT_DOUBLE_EQ(s.compute_ms, (0.200 + 0.190) / 2);
  // Rank 0: both ends were there at 110, the block at 200, and looking cost 2. Rank 1: busy from
  // 110 to 300, blocked to 340 for the block and to 350 for its send buffer.
  EXPECT_DOUBLE_EQ(s.hidden_ms, (0.090 + 0.190) / 2);
  EXPECT_DOUBLE_EQ(s.exposed_ms, (0.002 + 0.040 + 0.010) / 2);
  EXPECT_DOUBLE_EQ(s.transfer_ms, s.hidden_ms + s.exposed_ms);
  EXPECT_EQ(s.wait_ms, 0.0);
  EXPECT_EQ(s.sent_bytes, 4096);
  EXPECT_FALSE(s.transfer_is_bound);
}

TEST(Ring, the_last_step_computes_and_transfers_nothing) {
  const RingStepRecord last = ring_of(ring_input()).at(1);
  EXPECT_EQ(last.step, 1);
  EXPECT_DOUBLE_EQ(last.compute_ms, (0.100 + 0.200) / 2);
  EXPECT_EQ(last.transfer_ms, 0.0);
  EXPECT_EQ(last.sent_bytes, 0);
}

TEST(Ring, where_arrival_is_not_known_the_transfer_is_at_most_that) {
  AnalysisInput input = ring_input();
  comm(input, 0, 1).comm.arrived_ns = 0;
  input.transports[Axis::cp] = "tcp";
  const RingStepRecord s = ring_of(input).at(0);
  EXPECT_TRUE(s.transfer_is_bound);
  EXPECT_DOUBLE_EQ(s.hidden_ms, (0.190 + 0.190) / 2);  // rank 0: from 110 until it looked
  EXPECT_DOUBLE_EQ(s.exposed_ms, (0.002 + 0.040 + 0.010) / 2);
}

TEST(Ring, what_cores_copy_is_not_claimed_hidden) {
  AnalysisInput input = ring_input();
  comm(input, 0, 1).comm.arrived_ns = 0;
  comm(input, 1, 0).comm.arrived_ns = 0;
  ASSERT_EQ(input.transports.at(Axis::cp), "shm");
  const RingStepRecord s = ring_of(input).at(0);
  EXPECT_EQ(s.hidden_ms, 0.0);
  EXPECT_DOUBLE_EQ(s.transfer_ms, s.exposed_ms);
  EXPECT_DOUBLE_EQ(s.exposed_ms, (0.002 + 0.040 + 0.010) / 2);
  EXPECT_FALSE(s.transfer_is_bound);
}

TEST(Ring, before_the_sender_is_there_it_is_wait_and_not_bubble) {
  AnalysisInput input = ring_input();
  // Rank 0 sends at 330 only: rank 1, waiting since 300, knows that it came at 340.
  comm(input, 0, 0).comm.post_begin_ns = comm(input, 0, 0).comm.post_end_ns = us(302);
  comm(input, 0, 0).comm.wait_begin_ns = comm(input, 0, 0).comm.wait_end_ns = us(302);
  comm(input, 1, 0).comm.arrived_ns = 0;
  const RunRecord record = analyse(input);
  const PhaseRecord& phase = record.phases.at(0);
  const RingStepRecord& s = phase.ring.at(0);
  EXPECT_DOUBLE_EQ(s.wait_ms, 0.002 / 2);
  EXPECT_DOUBLE_EQ(s.hidden_ms, 0.090 / 2);
  EXPECT_DOUBLE_EQ(s.exposed_ms, (0.002 + 0.038 + 0.010) / 2);
  EXPECT_FALSE(s.transfer_is_bound);
  EXPECT_DOUBLE_EQ(phase.per_device.at(1).wait_ms, 0.002);
  EXPECT_EQ(phase.per_device.at(1).bubble_ms, 0.0);
  EXPECT_DOUBLE_EQ(phase.per_device.at(1).wire_ms, 0.048);
}

TEST(Ring, a_block_that_comes_while_the_sender_is_blocked_is_not_hidden) {
  AnalysisInput input = ring_input();
  // Rank 1 waits for its send buffer first, [300, 330), and then finds its block, there since 320.
  comm(input, 1, 1).comm.wait_begin_ns = us(300);
  comm(input, 1, 1).comm.wait_end_ns = us(330);
  comm(input, 1, 0).comm.wait_begin_ns = us(330);
  comm(input, 1, 0).comm.wait_end_ns = us(331);
  comm(input, 1, 0).comm.arrived_ns = us(320);
  const RingStepRecord s = ring_of(input).at(0);
  EXPECT_DOUBLE_EQ(s.hidden_ms, (0.090 + 0.190) / 2);
  EXPECT_DOUBLE_EQ(s.exposed_ms, (0.002 + 0.030 + 0.001) / 2);
}

TEST(Ring, messages_under_way_at_once_hide_the_same_time) {
  AnalysisInput input = ring_input();
  RankBuilder first(input.mesh, 0);
  first.at(Phase::prefill, 0, 0, Site::attention).ring_step(0);
  first.ring_message(CommOp::send, 1, 1, 1000, 100, 300, 300);
  RankBuilder second(input.mesh, 1);
  second.at(Phase::prefill, 0, 0, Site::attention).ring_step(0);
  second.ring_message(CommOp::recv, 0, 1, 1000, 110, 350, 350).arrived(250);
  input.timelines[0].comms.push_back(first.t.comms[0]);
  input.timelines[1].comms.push_back(second.t.comms[0]);
  const RingStepRecord s = ring_of(input).at(0);
  EXPECT_DOUBLE_EQ(s.hidden_ms, (0.090 + 0.190) / 2);
  EXPECT_EQ(s.sent_bytes, 4096 + 1000);
}

TEST(Ring, messages_and_collectives_of_one_group_do_not_meet) {
  AnalysisInput input = ring_input();
  for (int rank = 0; rank < 2; ++rank) {
    RankBuilder b(input.mesh, rank);
    b.at(Phase::prefill, 0, 0, Site::attention);
    b.collective(CommOp::all_gather, Axis::cp, 0, 4096, 600 + 10 * rank, 630);
    input.timelines[static_cast<size_t>(rank)].comms.push_back(b.t.comms.front());
  }
  const RunRecord record = analyse(input);
  const PhaseRecord& phase = record.phases.at(0);
  ASSERT_EQ(phase.collectives.size(), 2U);
  EXPECT_EQ(phase.collectives[0].op, "all_gather");
  EXPECT_DOUBLE_EQ(phase.collectives[0].wait_us.value(), 10.0);
  EXPECT_EQ(phase.collectives[1].op, "send_recv");
  EXPECT_EQ(phase.collectives[1].axis, "cp");
  EXPECT_EQ(phase.collectives[1].calls, 2);
  // Of both: the ring's 52 us, and the gather's 20 us on each rank.
  EXPECT_DOUBLE_EQ(phase.layers.at(0).wire_ms, (0.002 + 0.040 + 0.010 + 0.020 + 0.020) / 2);
  EXPECT_DOUBLE_EQ(phase.layers.at(0).wait_ms, 0.010 / 2);
  EXPECT_DOUBLE_EQ(phase.ring.at(0).exposed_ms, 0.052 / 2);  // the gather is not the ring's
}

TEST(Ring, there_is_none_where_no_ring_ran) {
  AnalysisInput input = ring_input();
  for (RankTimeline& timeline : input.timelines) {
    for (OpEvent& event : timeline.ops) event.scope.ring_step = -1;
    for (CommEvent& event : timeline.comms) event.scope.ring_step = -1;
  }
  EXPECT_TRUE(ring_of(input).empty());
  EXPECT_TRUE(ring_of(late_rank_input()).empty());
}

}  // namespace
}  // namespace testbed
