// Exact times of transfers and collectives on clusters with round figures: flows share links,
// messages overlap arithmetic, and what can never end is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/sim/sim_device.hpp"
#include "tests/golden/toy_cluster.hpp"

namespace testbed {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr double us = 1e-6;
constexpr double exact = 1e-12;  // a picosecond

double flow_seconds(const ClusterSpec& cluster,
                    const std::vector<std::array<int, 2>>& flows,
                    double n_bytes) {
  const auto time = make_virtual_time(cluster);
  double end = 0.0;
  EXPECT_TRUE(time->run({[&] {
                    std::vector<VirtualTime::FlowId> ids;
                    for (const auto& [from, to] : flows) {
                      ids.push_back(time->start_flow(from, to, n_bytes));
                    }
                    for (const VirtualTime::FlowId id : ids)
                      end = std::max(end, time->wait_flow(id));
                  }})
                  .empty());
  return end;
}

TEST(Flows, share_the_links_they_meet_on) {
  const ClusterSpec node = toy_cluster(4);
  EXPECT_NEAR(flow_seconds(node, {{0, 1}}, 1e6), 10 * us, exact);
  EXPECT_NEAR(flow_seconds(node, {{0, 1}, {2, 3}}, 1e6), 10 * us, exact);  // no link in common
  EXPECT_NEAR(flow_seconds(node, {{0, 1}, {1, 0}}, 1e6), 10 * us, exact);  // both directions
  EXPECT_NEAR(flow_seconds(node, {{0, 1}, {0, 2}}, 1e6), 20 * us, exact);  // one way out
  EXPECT_NEAR(flow_seconds(node, {{0, 2}, {1, 2}}, 1e6), 20 * us, exact);  // one way in
}

TEST(Flows, between_nodes_go_through_nics_and_not_through_nvlink) {
  ClusterSpec cluster = toy_cluster(2, 2);
  EXPECT_NEAR(flow_seconds(cluster, {{0, 2}}, 1e6), 100 * us, exact);
  // A NIC for each device: nothing in common.
  EXPECT_NEAR(flow_seconds(cluster, {{0, 2}, {1, 3}}, 1e6), 100 * us, exact);
  // The NIC is not NVLink: what stays in the node is not slowed down.
  EXPECT_NEAR(flow_seconds(cluster, {{0, 1}}, 1e6), 10 * us, exact);
  EXPECT_NEAR(flow_seconds(cluster, {{0, 2}, {0, 1}}, 1e6), 100 * us, exact);
  cluster.fabric->devices_per_nic = 2;  // one NIC for both
  EXPECT_NEAR(flow_seconds(cluster, {{0, 2}, {1, 3}}, 1e6), 200 * us, exact);
}

TEST(Flows, leaf_uplinks_are_shared_when_oversubscribed) {
  ClusterSpec cluster = toy_cluster(1, 4);
  cluster.fabric->nodes_per_leaf_switch = 2;
  cluster.fabric->oversubscription = 2.0;  // two nodes, one way up
  EXPECT_NEAR(flow_seconds(cluster, {{0, 1}, {2, 3}}, 1e6), 100 * us, exact);
  EXPECT_NEAR(flow_seconds(cluster, {{0, 2}, {1, 3}}, 1e6), 200 * us, exact);
}

TEST(Flows, sockets_of_a_tree_share_one_link) {
  ClusterSpec cluster = toy_cluster(4);
  cluster.node.topology = NodeTopology::tree;
  cluster.node.devices_per_socket = 2;
  cluster.node.socket_bytes_per_s = 1e11;
  EXPECT_NEAR(flow_seconds(cluster, {{0, 1}, {2, 3}}, 1e6), 10 * us, exact);
  EXPECT_NEAR(flow_seconds(cluster, {{0, 2}, {1, 3}}, 1e6), 20 * us, exact);
}

// The figures: 1 GiB over a ring of 8, links of 450 and of 64 GB/s in one direction.
TEST(Collectives, a_ring_at_line_rate_takes_its_bytes) {
  for (const double bytes_per_s : {450e9, 64e9}) {
    ClusterSpec cluster = toy_cluster(8);
    cluster.node.link.bytes_per_s = bytes_per_s;
    CollectiveTimes times(cluster, CommAlgorithm::ring);
    GroupPlacement eight{{0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 2, 3, 4, 5, 6, 7}};
    const CollectiveKey key = collective_key(CommOp::all_reduce, int64_t{1} << 30, eight);
    times.compute({key});
    const double expected = 2.0 * 7.0 / 8.0 * 0x1p30 / bytes_per_s;
    EXPECT_NEAR(times.find(key)->front().seconds, expected, 1e-6 * expected);
  }
}

TEST(Collectives, begin_when_the_last_rank_arrives) {
  ToyRanks ranks(toy_cluster(2), 2, {{CommOp::all_reduce, 1'000'000}});
  const auto left = ranks.run([](int rank, Communicator& group, SimClock& clock) {
    clock.add(rank == 1 ? 50 * us : 5 * us);
    group.all_reduce(simulated(1'000'000));
  });
  EXPECT_TRUE(left.empty());
  // One-shot and two-shot and ring send 1 MB each way between two ranks, at once or in halves.
  EXPECT_NEAR(ranks.now_s(0), 60 * us, exact);
  EXPECT_NEAR(ranks.now_s(1), 60 * us, exact);
}

// 10 us of arithmetic, 10 us on the link, twice: the second message leaves while the first one's
// receiver computes. Without overlap it would take 50 us.
TEST(Messages, travel_while_both_ends_compute) {
  ToyRanks ranks(toy_cluster(2), 2);
  const auto left = ranks.run([](int rank, Communicator& group, SimClock& clock) {
    std::vector<Pending> sent;
    for (int i = 0; i < 2; ++i) {
      if (rank == 1) group.recv(simulated(1'000'000), 0).wait();
      clock.add(10 * us);
      if (rank == 0) sent.push_back(group.send(simulated(1'000'000), 1));
    }
  });
  EXPECT_TRUE(left.empty());
  EXPECT_NEAR(ranks.now_s(1), 40 * us, exact);
}

// The ring step: post, compute, wait. 30 us of arithmetic hide 10 us on the link.
TEST(Messages, a_ring_step_hides_its_transfer) {
  constexpr int n = 4;
  ToyRanks ranks(toy_cluster(n), n);
  const auto left = ranks.run([](int rank, Communicator& group, SimClock& clock) {
    for (int step = 0; step < 3; ++step) {
      Pending sent = group.send(simulated(1'000'000), (rank + 1) % n);
      Pending next = group.recv(simulated(1'000'000), (rank + n - 1) % n);
      clock.add(30 * us);
      next.wait();
      sent.wait();
    }
  });
  EXPECT_TRUE(left.empty());
  for (int r = 0; r < n; ++r) EXPECT_NEAR(ranks.now_s(r), 90 * us, exact);
}

// Only a group that meets nobody on any link may take what it takes alone. A rank does one
// collective at a time: groups that have a rank in common do not meet.
TEST(Groups, are_exclusive_only_where_they_share_no_link) {
  const auto exclusive = [](const ClusterSpec& cluster,
                            const std::vector<std::vector<int>>& groups,
                            const std::vector<std::array<int, 2>>& messages) {
    const auto time = make_virtual_time(cluster);
    const CollectiveTimes times(cluster);
    SimNetwork network(*time, cluster, times, {});
    std::vector<SimGroup*> made;
    for (const auto& ranks : groups) made.push_back(&network.make_group(ranks, Axis::tp));
    for (const auto& [from, to] : messages) network.expect_messages(from, to);
    network.find_exclusive_groups();
    std::vector<bool> result;
    for (const SimGroup* group : made) result.push_back(group->exclusive);
    return result;
  };
  const std::vector<std::vector<int>> neighbours{{0, 1}, {2, 3}};
  const std::vector<std::vector<int>> crossing{{0, 2}, {1, 3}};
  const ClusterSpec node = toy_cluster(4);
  EXPECT_THAT(exclusive(node, neighbours, {}), ElementsAre(true, true));
  EXPECT_THAT(exclusive(node, crossing, {}), ElementsAre(true, true));  // each its own NVLink
  EXPECT_THAT(exclusive(node, neighbours, {{0, 2}}), ElementsAre(false, false));  // of a pipeline
  // Experts over two tp groups; then with a ring of context between these.
  const std::vector<std::vector<int>> nested{{0, 1}, {2, 3}, {0, 1, 2, 3}};
  EXPECT_THAT(exclusive(node, nested, {}), ElementsAre(true, true, true));
  EXPECT_THAT(exclusive(node, nested, {{1, 3}, {3, 1}}), ElementsAre(false, false, false));
  ClusterSpec tree = node;
  tree.node.topology = NodeTopology::tree;
  tree.node.devices_per_socket = 2;
  tree.node.socket_bytes_per_s = 1e11;
  EXPECT_THAT(exclusive(tree, neighbours, {}), ElementsAre(true, true));
  EXPECT_THAT(exclusive(tree, crossing, {}), ElementsAre(false, false));  // the socket link
  ClusterSpec nodes = toy_cluster(2, 2);
  EXPECT_THAT(exclusive(nodes, crossing, {}), ElementsAre(true, true));          // a NIC each
  EXPECT_THAT(exclusive(nodes, neighbours, {{0, 2}}), ElementsAre(true, true));  // NICs, not NVLink
  nodes.fabric->devices_per_nic = 2;
  EXPECT_THAT(exclusive(nodes, crossing, {}), ElementsAre(false, false));  // one NIC for both
}

// As MPI and NCCL match them: a receive that is waited for late keeps its message.
TEST(Messages, match_receives_in_the_order_of_posting) {
  ToyRanks ranks(toy_cluster(2), 2);
  std::vector<int32_t> first(1, 0);
  std::vector<int32_t> second(2, 0);
  ranks.run([&](int rank, Communicator& group, SimClock& /*clock*/) {
    std::vector<int32_t> ids{7, 8, 9};
    if (rank == 0) {
      group.send({ids.data(), DType::I32, {1}}, 1).wait();
      group.send({ids.data() + 1, DType::I32, {2}}, 1).wait();
      return;
    }
    Pending a = group.recv({first.data(), DType::I32, {1}}, 0);
    Pending b = group.recv({second.data(), DType::I32, {2}}, 0);
    b.wait();
    a.wait();
  });
  EXPECT_THAT(first, ElementsAre(7));
  EXPECT_THAT(second, ElementsAre(8, 9));
}

TEST(Messages, carry_host_memory) {
  ToyRanks ranks(toy_cluster(2), 2, {{CommOp::all_gather, 8}});
  std::vector<int32_t> received(2, 0);
  std::vector<std::vector<int32_t>> gathered(2, std::vector<int32_t>(2, 0));
  ranks.run([&](int rank, Communicator& group, SimClock& /*clock*/) {
    std::vector<int32_t> ids{7 + rank, 9};
    if (rank == 0) {
      group.send({ids.data(), DType::I32, {2}}, 1).wait();
    } else {
      group.recv({received.data(), DType::I32, {2}}, 0).wait();
    }
    group.all_gather({ids.data(), DType::I32, {1}},
                     {gathered[static_cast<size_t>(rank)].data(), DType::I32, {2, 1}});
  });
  EXPECT_THAT(received, ElementsAre(7, 9));
  for (const auto& all : gathered) EXPECT_THAT(all, ElementsAre(7, 8));
}

// A pair's message takes 10 us; the receiver asks for it early, and late.
TEST(Messages, tell_when_they_had_arrived) {
  ToyRanks ranks(toy_cluster(2), 2);
  struct Records final : CommSink {
    std::vector<CommRecord> all;
    void on_comm(const CommRecord& record) override { all.push_back(record); }
  } records;
  ranks.run([&](int rank, Communicator& group, SimClock& clock) {
    if (rank == 1) group.set_sink(&records);
    for (const double busy : {4 * us, 25 * us}) {
      if (rank == 0) {
        clock.move_to(busy < 10 * us ? 0.0 : 100 * us);
        group.send(simulated(1'000'000), 1).wait();
        continue;
      }
      if (busy > 10 * us) clock.move_to(100 * us);
      Pending coming = group.recv(simulated(1'000'000), 0);
      clock.add(busy);
      coming.wait();
    }
  });
  ASSERT_THAT(records.all, SizeIs(2));
  EXPECT_EQ(records.all[0].arrived_ns, 10'000);
  EXPECT_EQ(records.all[0].wait_end_ns, 10'000);  // came while it waited
  EXPECT_EQ(records.all[1].arrived_ns, 110'000);
  EXPECT_EQ(records.all[1].wait_end_ns, 125'000);  // had long been there
}

// Each rank sends n-1 of n parts of 1 MB: 30 us at 100 GB/s, by ring or directly.
TEST(Collectives, a_reduce_scatter_takes_its_bytes) {
  constexpr int n = 4;
  ToyRanks ranks(toy_cluster(n), n, {{CommOp::reduce_scatter, n * 1'000'000}});
  ranks.run([](int /*rank*/, Communicator& group, SimClock& /*clock*/) {
    group.reduce_scatter(simulated(n * 1'000'000), simulated(1'000'000));
  });
  for (int r = 0; r < n; ++r) EXPECT_NEAR(ranks.now_s(r), 30 * us, exact);
}

TEST(Deadlock, names_the_actors_that_hang) {
  ToyRanks ranks(toy_cluster(4), 4);
  const auto left = ranks.run([](int rank, Communicator& group, SimClock& /*clock*/) {
    if (rank == 1) group.recv(simulated(64), 2).wait();  // which rank 2 never sends
    if (rank == 3) group.recv(simulated(64), 1).wait();
  });
  EXPECT_THAT(left, ElementsAre(1, 3));
}

TEST(VirtualTimeIs, made_again_and_again) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(flow_seconds(toy_cluster(2 + i), {{0, 1}}, 1e6), 10 * us, exact);
  }
}

}  // namespace
}  // namespace testbed
