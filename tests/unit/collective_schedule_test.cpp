// Schedules: which algorithms a cluster offers, and what LinkTiming adds to their steps. Times are
// those of links that nothing else uses: the rounds' latencies and each device's bytes at its rate.
#include "parallel/comm/collective_schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "parallel/comm/wire_bytes.hpp"
#include "tests/unit/nodes_of.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double us = 1e-6;
constexpr double line = 450e9;
constexpr double nic_line = 50e9;
constexpr int64_t gib = int64_t{1} << 30;

ClusterSpec cluster_of(int n_nodes, bool in_switch_reduction) {
  ClusterSpec cluster;
  cluster.n_nodes = n_nodes;
  cluster.node.link.bytes_per_s = line;
  cluster.node.in_switch_reduction = in_switch_reduction;
  if (n_nodes > 1) cluster.fabric = FabricSpec{.nic = {.name = "nic", .bytes_per_s = nic_line}};
  return cluster;
}

// What the busiest end of a round takes; each rank has a link (and a NIC) of its own.
double seconds(const Round& round, const GroupPlacement& placement) {
  std::map<std::tuple<int, bool, bool>, double> busy;  // by end, whether it sends, crosses nodes
  for (const Flow& flow : round.flows) {
    const bool to_switch = flow.source == node_switch || flow.target == node_switch;
    const bool crosses = !to_switch && placement.node_of[static_cast<size_t>(flow.source)] !=
                                           placement.node_of[static_cast<size_t>(flow.target)];
    const double rate = flow.bytes_per_s > 0 ? flow.bytes_per_s : crosses ? nic_line : line;
    const double s = static_cast<double>(flow.n_bytes) / rate;
    if (flow.source != node_switch) busy[{flow.source, true, crosses}] += s;
    if (flow.target != node_switch) busy[{flow.target, false, crosses}] += s;
  }
  double longest = 0.0;
  for (const auto& [end, s] : busy) longest = std::max(longest, s);
  return round.latency_s + longest;
}

double seconds(CommOp op,
               CommAlgorithm algorithm,
               int64_t n_bytes,
               const GroupPlacement& placement,
               const ClusterSpec& cluster) {
  double total = 0.0;
  for (const Round& round : make_schedule(op, algorithm, n_bytes, placement, cluster).rounds) {
    total += seconds(round, placement);
  }
  return total;
}

TEST(CollectiveSchedule, IdealRingMovesAGibibyteOver8DevicesIn4Point2Milliseconds) {
  const double s =
      seconds(CommOp::all_reduce, CommAlgorithm::ring, gib, one_node(8), cluster_of(1, false));
  EXPECT_NEAR(s, 14.0 / 8.0 * static_cast<double>(gib) / line, 1e-9);
  EXPECT_NEAR(s * 1e3, 4.2, 0.03);
}

TEST(CollectiveSchedule, IdealAlgorithmsTakeTheBytesTheyAreNamedFor) {
  const ClusterSpec cluster = cluster_of(1, true);
  const GroupPlacement group = one_node(8);
  const double s = static_cast<double>(gib) / line;
  const auto time = [&](CommOp op, CommAlgorithm algorithm) {
    return seconds(op, algorithm, gib, group, cluster) / s;
  };
  EXPECT_NEAR(time(CommOp::all_reduce, CommAlgorithm::one_shot), 7.0, 1e-6);
  EXPECT_NEAR(time(CommOp::all_reduce, CommAlgorithm::two_shot), 14.0 / 8.0, 1e-6);
  EXPECT_NEAR(time(CommOp::all_reduce, CommAlgorithm::nvls), 9.0 / 8.0, 1e-6);
  EXPECT_NEAR(time(CommOp::all_reduce, CommAlgorithm::tree), 2.0, 1e-6);  // a chain, both ways
  EXPECT_NEAR(time(CommOp::all_gather, CommAlgorithm::ring), 7.0 / 8.0, 1e-6);
  EXPECT_NEAR(time(CommOp::reduce_scatter, CommAlgorithm::direct), 7.0 / 8.0, 1e-6);
  EXPECT_NEAR(time(CommOp::all_to_all, CommAlgorithm::direct), 7.0 / 8.0, 1e-6);
  EXPECT_NEAR(time(CommOp::broadcast, CommAlgorithm::direct), 7.0, 1e-6);
  EXPECT_NEAR(seconds(CommOp::send, CommAlgorithm::direct, gib, one_node(2), cluster) / s, 1, 1e-9);
}

// A machine whose messages and all-gathers were measured can scatter too.
TEST(CollectiveSchedule, DirectExchangesGoByTheAllGathersTiming) {
  ClusterSpec cluster = cluster_of(1, false);
  LinkTiming& timing = cluster.node.link.timing;
  timing.of["all_reduce/two-shot"] = {{.start_s = 9 * us}};
  EXPECT_THAT(algorithms_for(CommOp::reduce_scatter, one_node(4), cluster, 4000), IsEmpty());
  timing.of["all_gather/direct"] = {{.start_s = 3 * us, .bytes_per_s = 1e9}};
  EXPECT_THAT(algorithms_for(CommOp::reduce_scatter, one_node(4), cluster, 4000),
              ElementsAre(CommAlgorithm::direct));
  for (const CommOp op : {CommOp::all_gather, CommOp::reduce_scatter, CommOp::all_to_all}) {
    EXPECT_NEAR(seconds(op, CommAlgorithm::direct, 4000, one_node(4), cluster), 6 * us, 1e-12);
  }
}

TEST(CollectiveSchedule, OfferedAlgorithmsAreThoseTheLinksCanDo) {
  using enum CommAlgorithm;
  const auto all_reduce = [](const GroupPlacement& group, const ClusterSpec& cluster) {
    return algorithms_for(CommOp::all_reduce, group, cluster, 4096);
  };
  EXPECT_THAT(all_reduce(one_node(1), cluster_of(1, true)), IsEmpty());
  EXPECT_THAT(all_reduce(one_node(8), cluster_of(1, false)), ElementsAre(ring, one_shot, two_shot));
  EXPECT_THAT(all_reduce(one_node(8), cluster_of(1, true)),
              ElementsAre(ring, one_shot, two_shot, nvls));
  EXPECT_THAT(all_reduce(nodes_of(2, 8), cluster_of(2, true)),
              ElementsAre(ring, tree, hierarchical));
  EXPECT_THAT(all_reduce(nodes_of(4, 1), cluster_of(4, true)), ElementsAre(ring, tree));
  EXPECT_THAT(algorithms_for(CommOp::all_gather, nodes_of(2, 8), cluster_of(2, true), 4096),
              ElementsAre(ring));
  EXPECT_THAT(algorithms_for(CommOp::all_to_all, nodes_of(2, 8), cluster_of(2, true), 4096),
              ElementsAre(direct));
  ClusterSpec calibrated = cluster_of(1, true);
  calibrated.node.link.timing.of["all_reduce/ring"] = {{.start_s = 5 * us}};
  EXPECT_THAT(all_reduce(one_node(8), calibrated), ElementsAre(ring));
  // Up to the payload for which a library uses it.
  calibrated.node.link.timing.of["all_reduce/one-shot"] = {{.most_payload_bytes = 4096}};
  EXPECT_THAT(all_reduce(one_node(8), calibrated), ElementsAre(ring, one_shot));
  EXPECT_THAT(algorithms_for(CommOp::all_reduce, one_node(8), calibrated, 4097), ElementsAre(ring));
}

TEST(CollectiveSchedule, RingChargesStartFillAndCopyOnceAndItsStepInEveryRound) {
  ClusterSpec cluster = cluster_of(1, false);
  cluster.node.link.timing.of["all_reduce/ring"] = {{.start_s = 5 * us,
                                                     .step_s = 1 * us,
                                                     .bytes_per_s = 300e9,
                                                     .copy_s_per_byte = 1e-12,
                                                     .fill_s = 3 * us}};
  const int64_t n_bytes = 64 << 20;
  const CollectiveSchedule schedule =
      make_schedule(CommOp::all_reduce, CommAlgorithm::ring, n_bytes, one_node(4), cluster);
  ASSERT_EQ(schedule.rounds.size(), 6U);
  const double x = 1.5 * static_cast<double>(n_bytes) / 300e9;
  const double copy_s = static_cast<double>(n_bytes) / 4 * 1e-12;
  EXPECT_NEAR(schedule.rounds[0].latency_s, 6 * us + copy_s + 2 * std::sqrt(3 * us * x), 1e-12);
  for (size_t r = 1; r < 6; ++r) EXPECT_DOUBLE_EQ(schedule.rounds[r].latency_s, 1 * us);
  for (const Round& round : schedule.rounds) {
    ASSERT_EQ(round.flows.size(), 4U);
    for (const Flow& flow : round.flows) {
      EXPECT_EQ(flow.n_bytes, n_bytes / 4);
      EXPECT_DOUBLE_EQ(flow.bytes_per_s, 300e9);
    }
  }
}

TEST(CollectiveSchedule, ProtocolIsTheFirstThatAdmitsThePayloadPerRank) {
  ClusterSpec cluster = cluster_of(1, false);
  cluster.node.link.timing.of["all_gather/ring"] = {
      {.name = "ll", .max_bytes = 1000, .start_s = 1 * us},
      {.name = "simple", .start_s = 9 * us, .sharing = 0.0}};
  const auto latency_s = [&](int64_t n_bytes) {
    return make_schedule(CommOp::all_gather, CommAlgorithm::ring, n_bytes, one_node(4), cluster)
        .rounds.front()
        .latency_s;
  };
  EXPECT_DOUBLE_EQ(latency_s(4000), 1 * us);
  EXPECT_DOUBLE_EQ(latency_s(4004), 9 * us);
}

TEST(CollectiveSchedule, RanksThatShareABusAreSlowerByTheirNumber) {
  ClusterSpec cluster = cluster_of(1, false);
  cluster.node.link.timing.of["all_to_all/direct"] = {{.bytes_per_s = 20e9, .sharing = 2.0}};
  const auto rate = [&](int n) {
    return make_schedule(CommOp::all_to_all, CommAlgorithm::direct, 4096, one_node(n), cluster)
        .rounds.front()
        .flows.front()
        .bytes_per_s;
  };
  EXPECT_DOUBLE_EQ(rate(2), 20e9);
  EXPECT_DOUBLE_EQ(rate(4), 5e9);
  EXPECT_DOUBLE_EQ(rate(8), 1.25e9);
}

TEST(CollectiveSchedule, RingAcrossNodesPaysTheNicsLatencyWhereItCrosses) {
  ClusterSpec cluster = cluster_of(2, false);
  cluster.node.link.timing.of["all_reduce/ring"] = {{.step_s = 1 * us}};
  cluster.fabric->nic.timing.of["send/direct"] = {{.step_s = 5 * us, .bytes_per_s = 40e9}};
  const CollectiveSchedule schedule =
      make_schedule(CommOp::all_reduce, CommAlgorithm::ring, 1 << 20, nodes_of(2, 4), cluster);
  ASSERT_EQ(schedule.rounds.size(), 14U);
  EXPECT_DOUBLE_EQ(schedule.rounds[0].latency_s, (6 * 1 * us + 2 * 5 * us) / 8);
  for (const Flow& flow : schedule.rounds[0].flows) {
    EXPECT_DOUBLE_EQ(flow.bytes_per_s, flow.source / 4 == flow.target / 4 ? 0.0 : 40e9);
  }
}

// Channels leave each node by another NIC each: the NICs carry 2(n-1)/n S / 8 in all.
TEST(CollectiveSchedule, RingAcrossNodesUsesEveryNic) {
  const double s =
      seconds(CommOp::all_reduce, CommAlgorithm::ring, gib, nodes_of(2, 8), cluster_of(2, false));
  const double nic_s = 30.0 / 16.0 * static_cast<double>(gib) / 8.0 / nic_line;
  EXPECT_NEAR(s, nic_s, nic_s * 1e-6);
}

TEST(CollectiveSchedule, HierarchicalAllReduceIsTheSumOfItsPhases) {
  const double bytes = static_cast<double>(gib);
  for (const auto& [n_nodes, across] : {std::pair{2, 1.0}, {4, 1.5}, {16, 2.0}}) {
    const double s = seconds(CommOp::all_reduce,
                             CommAlgorithm::hierarchical,
                             gib,
                             nodes_of(n_nodes, 8),
                             cluster_of(n_nodes, false));
    // Above max_ring_nodes two trees: an inner member of one, a leaf of the other, sends 3/2 + 1/2.
    const double expected = 2.0 * 7.0 / 8.0 * bytes / line + across * bytes / 8.0 / nic_line;
    EXPECT_NEAR(s, expected, expected * 1e-6) << n_nodes << " nodes";
  }
}

TEST(CollectiveSchedule, RingsTooLongToPlayStepByStepTakeTheSameTime) {
  ClusterSpec cluster = cluster_of(1, false);
  cluster.node.link.timing.of["all_reduce/ring"] = {{.start_s = 5 * us, .step_s = 1 * us}};
  const GroupPlacement group = one_node(72);
  const CollectiveSchedule schedule =
      make_schedule(CommOp::all_reduce, CommAlgorithm::ring, 72 << 20, group, cluster);
  ASSERT_EQ(schedule.rounds.size(), 1U);
  EXPECT_EQ(schedule.rounds[0].flows.size(), 72U);
  EXPECT_NEAR(schedule.rounds[0].latency_s, 5 * us + 142 * us, 1e-12);
  EXPECT_NEAR(seconds(schedule.rounds[0], group), 147 * us + 142.0 * (1 << 20) / line, 1e-9);
}

// Also those of the longest groups.
TEST(CollectiveSchedule, FlowsCarryExactlyTheWireBytes) {
  struct Case {
    CommOp op;
    CommAlgorithm algorithm;
    GroupPlacement placement;
    int64_t n_elements;
  };
  const Case cases[] = {
      {CommOp::all_reduce, CommAlgorithm::ring, nodes_of(16, 8), 100003},
      {CommOp::all_reduce, CommAlgorithm::tree, nodes_of(16, 8), 100003},
      {CommOp::all_reduce, CommAlgorithm::hierarchical, nodes_of(16, 8), 100003},
      {CommOp::all_reduce, CommAlgorithm::hierarchical, nodes_of(4, 8), 97},
      {CommOp::all_reduce, CommAlgorithm::two_shot, one_node(8), 5},
      {CommOp::all_reduce, CommAlgorithm::nvls, one_node(8), 1001},
      {CommOp::reduce_scatter, CommAlgorithm::ring, nodes_of(3, 4), 77},
      {CommOp::all_to_all, CommAlgorithm::direct, nodes_of(2, 8), 163},
      {CommOp::broadcast, CommAlgorithm::direct, one_node(5), 9},
      {CommOp::send, CommAlgorithm::direct, nodes_of(2, 1), 9},
      {CommOp::barrier, CommAlgorithm::direct, one_node(4), 0},
  };
  for (const Case& c : cases) {
    const ClusterSpec cluster = cluster_of(16, true);
    std::map<int, int64_t> sent;
    for (const Round& round :
         make_schedule(c.op, c.algorithm, 2 * c.n_elements, c.placement, cluster, 2).rounds) {
      for (const Flow& flow : round.flows) sent[flow.source] += flow.n_bytes;
    }
    for (int rank = 0; rank < c.placement.size(); ++rank) {
      EXPECT_EQ(sent[rank], wire_bytes(c.op, c.algorithm, 2 * c.n_elements, 2, rank, c.placement))
          << comm_op_name(c.op) << ' ' << algorithm_name(c.algorithm) << ", rank " << rank;
    }
  }
}

TEST(CommAlgorithm, IsFoundByItsName) {
  EXPECT_EQ(algorithm_by_name("one-shot"), CommAlgorithm::one_shot);
  EXPECT_EQ(algorithm_by_name("hierarchical"), CommAlgorithm::hierarchical);
  EXPECT_EQ(algorithm_by_name("telepathy"), std::nullopt);
}

}  // namespace
}  // namespace testbed
