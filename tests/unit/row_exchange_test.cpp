// Exchanges of rows: what moves between which ranks, which kernels the links offer, and what the
// calibration adds.
#include "parallel/comm/row_exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/nodes_of.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = RowExchange::Kind;
using enum CommAlgorithm;

constexpr double us = 1e-6;

ClusterSpec cluster_of(int n_nodes, int n_local) {
  ClusterSpec cluster;
  cluster.n_nodes = n_nodes;
  cluster.node.n_devices = n_local;
  cluster.node.link.bytes_per_s = 400e9;
  if (n_nodes > 1) cluster.fabric = FabricSpec{.nic = {.name = "nic", .bytes_per_s = 50e9}};
  return cluster;
}

// 2 nodes of 2. Rank 0 has a row for each rank of the other node, the same one (100 bytes), and
// another for its neighbour (7); rank 3 has one of 11 for rank 1.
RowMatrix dispatch() {
  return {.kind = Kind::dispatch,
          .size = 4,
          .n_nodes = 2,
          .bytes = {5, 7, 100, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0},
          .node_bytes = {7, 100, 0, 0, 0, 0, 11, 0}};
}
// The way back.
RowMatrix combine() {
  RowMatrix rows = dispatch();
  rows.kind = Kind::combine;
  rows.bytes.clear();
  rows.bytes.reserve(16);
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) rows.bytes.push_back(dispatch().between(b, a));
  }
  return rows;
}

using Moved = std::map<std::pair<int, int>, int64_t>;
Moved moved(CommAlgorithm algorithm, const RowMatrix& rows) {
  const CollectiveSchedule schedule =
      exchange_schedule(algorithm, rows, nodes_of(2, 2), cluster_of(2, 2));
  EXPECT_EQ(schedule.rounds.size(), 1U);
  Moved flows;
  for (const Flow& flow : schedule.rounds.front().flows) {
    EXPECT_TRUE(flows.try_emplace({flow.source, flow.target}, flow.n_bytes).second);
  }
  return flows;
}

Moved turned(const Moved& flows) {
  Moved back;
  for (const auto& [ends, n_bytes] : flows) back[{ends.second, ends.first}] = n_bytes;
  return back;
}

TEST(RowExchange, direct_moves_every_row_but_ones_own) {
  const Moved expected{{{0, 1}, 7}, {{0, 2}, 100}, {{0, 3}, 100}, {{3, 1}, 11}};
  EXPECT_EQ(moved(direct, dispatch()), expected);
  EXPECT_EQ(moved(low_latency, dispatch()), expected);
  EXPECT_EQ(moved(direct, combine()), turned(expected));
}

// Rank 2 has rank 0's place on its node, rank 1 that of rank 3.
TEST(RowExchange, hierarchical_crosses_once_and_hands_on) {
  const Moved expected{{{0, 1}, 7}, {{0, 2}, 100}, {{2, 3}, 100}, {{3, 1}, 11}};
  EXPECT_EQ(moved(hierarchical, dispatch()), expected);
  EXPECT_EQ(moved(hierarchical, combine()), turned(expected));
}

TEST(RowExchange, the_busiest_rank_sends_or_receives_most) {
  EXPECT_EQ(dispatch().busiest_bytes(), 212);
  EXPECT_EQ(combine().busiest_bytes(), 212);
}

// Rank 0 sends most across, 200, and within its node, 7.
TEST(RowExchange, condensed_it_loads_every_link_like_the_busiest) {
  const GroupPlacement placement = nodes_of(2, 2);
  const CollectiveSchedule all = exchange_schedule(direct, dispatch(), placement, cluster_of(2, 2));
  Moved flows;
  const CollectiveSchedule few = condensed(all, placement);
  for (const Flow& flow : few.rounds.front().flows)
    flows[{flow.source, flow.target}] = flow.n_bytes;
  const Moved expected{{{0, 1}, 7},
                       {{1, 0}, 7},
                       {{2, 3}, 7},
                       {{3, 2}, 7},
                       {{0, 2}, 200},
                       {{1, 3}, 200},
                       {{2, 0}, 200},
                       {{3, 1}, 200}};
  EXPECT_EQ(flows, expected);
}

TEST(RowExchange, kernels_are_offered_where_they_were_measured) {
  const auto offered = [](const RowMatrix& rows, const ClusterSpec& cluster) {
    return exchange_algorithms(rows, nodes_of(2, 2), cluster);
  };
  ClusterSpec cluster = cluster_of(2, 2);
  EXPECT_THAT(offered(dispatch(), cluster), ElementsAre(direct, hierarchical));  // ideal
  RowMatrix unknown = dispatch();
  unknown.node_bytes.clear();
  EXPECT_THAT(offered(unknown, cluster), ElementsAre(direct));
  RowMatrix plain = dispatch();
  plain.kind = Kind::rows;
  EXPECT_THAT(offered(plain, cluster), ElementsAre(direct));

  LinkTiming& link = cluster.node.link.timing;
  LinkTiming& nic = cluster.fabric->nic.timing;
  for (const char* key : {"dispatch/low-latency", "dispatch/hierarchical"}) {
    link.of[key] = {{.start_s = 5 * us}};
  }
  EXPECT_THAT(offered(dispatch(), cluster), ElementsAre(direct));  // not over the NIC
  nic.of["dispatch/hierarchical"] = {{.start_s = 30 * us}};
  nic.of["dispatch/low-latency"] = {{.max_bytes = 212, .start_s = 20 * us}};
  EXPECT_THAT(offered(dispatch(), cluster), ElementsAre(low_latency, hierarchical));
  nic.of["dispatch/low-latency"].back().max_bytes = 211;
  EXPECT_THAT(offered(dispatch(), cluster), ElementsAre(hierarchical));
  EXPECT_THAT(offered(combine(), cluster), ElementsAre(direct));
  EXPECT_THAT(exchange_algorithms({}, one_node(1), cluster), IsEmpty());
}

TEST(RowExchange, latencies_are_those_of_the_links_in_use) {
  ClusterSpec cluster = cluster_of(4, 2);
  cluster.node.link.timing.of["dispatch/hierarchical"] = {
      {.start_s = 35 * us, .bytes_per_s = 3e11}};
  cluster.fabric->nic.timing.of["dispatch/hierarchical"] = {
      {.max_nodes = 2, .start_s = 20 * us, .step_s = 3 * us, .bytes_per_s = 40e9},
      {.start_s = 20 * us, .step_s = 7 * us, .bytes_per_s = 20e9}};
  RowMatrix rows{
      .kind = Kind::dispatch, .size = 2, .n_nodes = 1, .bytes = {0, 9, 9, 0}, .node_bytes = {9, 9}};
  const auto round = [&](const GroupPlacement& placement) {
    return exchange_schedule(hierarchical, rows, placement, cluster).rounds.front();
  };
  const Round within = round(one_node(2));
  EXPECT_DOUBLE_EQ(within.latency_s, 35 * us);
  EXPECT_DOUBLE_EQ(within.flows.front().bytes_per_s, 3e11);
  rows.n_nodes = 2;
  rows.node_bytes = {0, 9, 9, 0};
  const Round across = round(nodes_of(2, 1));
  EXPECT_DOUBLE_EQ(across.latency_s, 23 * us);
  EXPECT_DOUBLE_EQ(across.flows.front().bytes_per_s, 40e9);
  rows = {.kind = Kind::dispatch,
          .size = 4,
          .n_nodes = 4,
          .bytes = std::vector<int64_t>(16, 9),
          .node_bytes = std::vector<int64_t>(16, 9)};
  const Round on_four = round(nodes_of(4, 1));
  EXPECT_DOUBLE_EQ(on_four.latency_s, 34 * us);
  EXPECT_DOUBLE_EQ(on_four.flows.front().bytes_per_s, 20e9);
}

}  // namespace
}  // namespace testbed
