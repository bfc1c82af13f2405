// Carries blocks around a ring as ring attention does, by the plans of all its ranks.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "parallel/ring_plan.hpp"

namespace testbed {

// at_hand: [rank] what each rank's cache holds, by block. visit(rank, sequence, block, content) for
// every block that a rank attends to.
template <typename Content, typename Visit>
void walk_ring(const std::vector<const RingPlan*>& plans,
               std::vector<std::map<int32_t, Content>> at_hand,
               const Visit& visit) {
  const size_t cp = plans.size();
  for (size_t step = 0; step < cp; ++step) {
    std::vector<std::map<int32_t, Content>> received(cp);
    for (size_t rank = 0; rank < cp; ++rank) {
      ASSERT_EQ(plans[rank]->steps().size(), cp);
      const RingStep& at = plans[rank]->steps()[step];
      for (const AttentionSequence& sequence : at.sequences) {
        for (const KvBlock& block : sequence.blocks) {
          ASSERT_EQ(at_hand[rank].count(block.block), 1U) << "rank " << rank << " step " << step;
          visit(rank, sequence, block, at_hand[rank].at(block.block));
        }
      }
      std::map<int32_t, Content>& next = received[(rank + 1) % cp];
      for (const int32_t block : at.send) {
        ASSERT_EQ(at_hand[rank].count(block), 1U) << "rank " << rank << " step " << step;
        next.emplace(static_cast<int32_t>(next.size()), at_hand[rank].at(block));
      }
      ASSERT_EQ(static_cast<int64_t>(at.send.size()),
                plans[(rank + 1) % cp]->steps()[step].n_receive);
    }
    at_hand = std::move(received);
  }
  for (const auto& left : at_hand) EXPECT_TRUE(left.empty());
}

}  // namespace testbed
