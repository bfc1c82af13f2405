// --deterministic: which ranks have to hold the same bits.
#include "runtime/commands/passes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace testbed {
namespace {

using ::testing::HasSubstr;

// rank = tp + 2 * (cp + 2 * dp)
const Mesh mesh{.tp = 2, .cp = 2, .dp = 2};

// Rows of a prompt are alike in a tp group, decoding rows in a replica.
std::vector<ResidualHash> alike() {
  std::vector<ResidualHash> hashes;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Coordinates c = mesh.coordinates(rank);
    hashes.push_back({.of_tp = static_cast<uint64_t>(10 + 2 * c.dp + c.cp),
                      .of_tp_and_cp = static_cast<uint64_t>(20 + c.dp)});
  }
  return hashes;
}

TEST(Deterministic, replicas_and_the_prompts_of_cp_ranks_may_differ) {
  EXPECT_EQ(why_bits_differ(mesh, alike()), std::nullopt);
}

TEST(Deterministic, a_tp_rank_that_differs_is_named) {
  std::vector<ResidualHash> hashes = alike();
  hashes[7].of_tp ^= 1;
  EXPECT_THAT(why_bits_differ(mesh, hashes).value(),
              HasSubstr("rank 7 differs in its bits from rank 6"));
}

TEST(Deterministic, a_cp_rank_that_differs_when_decoding_is_named) {
  std::vector<ResidualHash> hashes = alike();
  hashes[3].of_tp_and_cp ^= 1;
  EXPECT_THAT(why_bits_differ(mesh, hashes).value(),
              HasSubstr("rank 3 differs in its bits from rank 0"));
}

}  // namespace
}  // namespace testbed
