// Bytes that a device sends in NCCL's algorithms which are measured, not simulated.
#include <gtest/gtest.h>

#include "parallel/comm/wire_bytes.hpp"

namespace testbed {
namespace {

constexpr int64_t bf16 = 2;
constexpr int64_t payload = 8192;  // of the whole tensor

const GroupPlacement two_nodes{.node_of = {0, 0, 0, 0, 1, 1, 1, 1},
                               .device_of = {0, 1, 2, 3, 0, 1, 2, 3}};

// The switch reads every rank's rows to sum them; each rank hands its sum, or its part, out once.
TEST(NcclAlgorithms, nvls_parts) {
  const auto bytes = [](CommOp op) {
    return wire_bytes(op, CommAlgorithm::nvls, payload, bf16, 1, 4);
  };
  EXPECT_EQ(bytes(CommOp::reduce_scatter), payload);
  EXPECT_EQ(bytes(CommOp::all_gather), payload / 4);
  EXPECT_EQ(bytes(CommOp::all_reduce), bytes(CommOp::reduce_scatter) + bytes(CommOp::all_gather));
}

TEST(NcclAlgorithms, pat_sends_as_much_as_a_ring) {
  for (const CommOp op : {CommOp::all_gather, CommOp::reduce_scatter}) {
    EXPECT_EQ(wire_bytes(op, CommAlgorithm::pat, payload, bf16, 3, two_nodes), payload * 7 / 8);
    EXPECT_EQ(wire_bytes(op, CommAlgorithm::pat, payload, bf16, 3, two_nodes),
              wire_bytes(op, CommAlgorithm::ring, payload, bf16, 3, two_nodes));
  }
}

// Of two nodes, one is the root and one the leaf of either tree: each sends its part once.
TEST(NcclAlgorithms, nvls_tree_is_nvls_and_a_tree_of_parts) {
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(
        wire_bytes(CommOp::all_reduce, CommAlgorithm::nvls_tree, payload, bf16, rank, two_nodes),
        payload + payload / 4 + payload / 4)
        << rank;
  }
  EXPECT_EQ(wire_bytes(CommOp::all_reduce, CommAlgorithm::nvls_tree, payload, bf16, 0, 4),
            wire_bytes(CommOp::all_reduce, CommAlgorithm::nvls, payload, bf16, 0, 4));
}

TEST(NcclAlgorithms, collnet_sends_a_part_once_to_the_network) {
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(
        wire_bytes(CommOp::all_reduce, CommAlgorithm::collnet, payload, bf16, rank, two_nodes),
        2 * payload * 3 / 4 + payload / 4)
        << rank;
  }
}

TEST(NcclAlgorithms, have_names) {
  for (const CommAlgorithm a :
       {CommAlgorithm::nvls_tree, CommAlgorithm::collnet, CommAlgorithm::pat}) {
    EXPECT_EQ(algorithm_by_name(algorithm_name(a)), a);
  }
}

}  // namespace
}  // namespace testbed
