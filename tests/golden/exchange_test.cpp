// Exchanges of rows between simulated ranks: exact times on clusters with round figures, what is
// recorded, and host memory that really moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/golden/toy_cluster.hpp"

namespace testbed {
namespace {

using ::testing::ElementsAre;

constexpr double us = 1e-6;
constexpr double exact = 1e-12;  // a picosecond

struct Sent final : CommSink {
  CommRecord record;
  void on_comm(const CommRecord& told) override { record = told; }
};

// Rows of 1 MB (500,000 bf16).
TensorView rows(int64_t n) {
  constexpr int64_t row_elements = 500'000;
  return simulated(n * row_elements * 2).reshaped({n, row_elements});
}

// Four ranks; rank 0 has three rows for rank 1 and one for itself, which goes nowhere; rank 2 one
// for rank 1. Rank 1's link down carries four: 40 us. Rank 3 has no rows at all.
std::vector<Sent> exchange_unevenly(ToyRanks& ranks) {
  const std::vector<std::vector<int64_t>> all{
      {1, 3, 0, 0}, {0, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 0, 0}};
  std::vector<Sent> sent(4);
  const auto left = ranks.run([&](int rank, Communicator& group, SimClock& clock) {
    const auto me = static_cast<size_t>(rank);
    group.set_sink(&sent[me]);
    clock.add(rank == 3 ? 7 * us : 0.0);  // the last to come
    std::vector<int64_t> coming;
    coming.reserve(all.size());
    for (const std::vector<int64_t>& of : all) coming.push_back(of[me]);
    group.all_to_all(rows(std::accumulate(all[me].begin(), all[me].end(), int64_t{0})),
                     all[me],
                     rows(std::accumulate(coming.begin(), coming.end(), int64_t{0})),
                     coming);
  });
  EXPECT_TRUE(left.empty());
  return sent;
}

TEST(Exchange, takes_what_the_busiest_link_does) {
  for (const bool played : {true, false}) {
    ToyRanks ranks(toy_cluster(4), 4, {}, played);
    const std::vector<Sent> sent = exchange_unevenly(ranks);
    for (int r = 0; r < 4; ++r) EXPECT_NEAR(ranks.now_s(r), 47 * us, exact) << played;
    EXPECT_EQ(sent[0].record.payload_bytes, 4'000'000);
    EXPECT_EQ(sent[0].record.wire_bytes, 3'000'000);
    EXPECT_EQ(sent[2].record.wire_bytes, 1'000'000);
    EXPECT_EQ(sent[3].record.payload_bytes, 0);
    EXPECT_EQ(sent[3].record.algorithm, CommAlgorithm::direct);
  }
}

// Two nodes of two, NICs of 10 GB/s. Rank 0's row goes to both ranks of the other node: 200 us
// apart, 100 us if the row crosses once; nothing else is on the way. The way back alike.
TEST(Exchange, sends_a_row_to_a_node_once_if_told) {
  for (const bool told : {false, true}) {
    ToyRanks ranks(toy_cluster(2, 2), 4, {}, false);
    std::vector<Sent> dispatch(4);
    std::vector<Sent> combine(4);
    const auto left = ranks.run([&](int rank, Communicator& group, SimClock& /*clock*/) {
      const auto me = static_cast<size_t>(rank);
      const std::vector<int64_t> both{0, 0, 1, 1};
      const std::vector<int64_t> none(4, 0);
      const std::vector<int64_t> one{1, 0, 0, 0};
      const std::vector<int64_t> nodes{0, rank == 0 ? 1 : 0};
      const std::vector<int64_t>& out = rank == 0 ? both : none;
      const std::vector<int64_t>& in = rank >= 2 ? one : none;
      const RowExchange::Kind kinds[] = {RowExchange::Kind::dispatch, RowExchange::Kind::combine};
      RowExchange how{.kind = kinds[0], .node_rows = {}};
      if (told) how.node_rows = nodes;
      group.set_sink(&dispatch[me]);
      group.all_to_all(rows(rank == 0 ? 2 : 0), out, rows(rank >= 2 ? 1 : 0), in, how);
      how.kind = kinds[1];
      group.set_sink(&combine[me]);
      group.all_to_all(rows(rank >= 2 ? 1 : 0), in, rows(rank == 0 ? 2 : 0), out, how);
    });
    EXPECT_TRUE(left.empty());
    EXPECT_NEAR(ranks.now_s(0), (told ? 200 : 400) * us, exact);
    const auto expected = told ? CommAlgorithm::hierarchical : CommAlgorithm::direct;
    EXPECT_EQ(dispatch[0].record.algorithm, expected);
    EXPECT_EQ(dispatch[0].record.wire_bytes, told ? 1'000'000 : 2'000'000);
    EXPECT_EQ(dispatch[2].record.wire_bytes, told ? 1'000'000 : 0);  // handed on to rank 3
    EXPECT_EQ(combine[2].record.wire_bytes, 1'000'000);              // the sum, or its own row
    EXPECT_EQ(combine[3].record.wire_bytes, 1'000'000);
  }
}

TEST(Exchange, carries_host_memory) {
  ToyRanks ranks(toy_cluster(3), 3);
  std::vector<std::vector<int32_t>> received(3, std::vector<int32_t>(3, -1));
  ranks.run([&](int rank, Communicator& group, SimClock& /*clock*/) {
    // Rank r has r rows for each rank, numbered 100 r + target.
    const std::vector<int64_t> out(3, rank);
    const std::vector<int64_t> in{0, 1, 2};
    std::vector<int32_t> ids;
    for (int target = 0; target < 3; ++target)
      ids.insert(ids.end(), static_cast<size_t>(rank), 100 * rank + target);
    group.all_to_all({ids.data(), DType::I32, {int64_t{3} * rank, 1}},
                     out,
                     {received[static_cast<size_t>(rank)].data(), DType::I32, {3, 1}},
                     in);
  });
  EXPECT_THAT(received[0], ElementsAre(100, 200, 200));
  EXPECT_THAT(received[1], ElementsAre(101, 201, 201));
  EXPECT_THAT(received[2], ElementsAre(102, 202, 202));
}

}  // namespace
}  // namespace testbed
