// RingPlan: which cached blocks travel around a cp group, and what each rank attends to at each
// step. Arithmetic only: every rank works it out from the step's plan alone.
//
// At step s rank r has the blocks of rank (r - s) mod cp at hand and sends on to r + 1 those of
// them that a later rank still needs. Blocks that the mask or the window hides from a rank's
// queries are not in its sequences; blocks that it hides from all later ranks are not sent.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kernels/base/kv.hpp"

namespace testbed {

// One request's rows and cached blocks, over all ranks of the group.
struct RingSequence {
  int64_t first_row = 0;                       // of this rank's rows
  std::vector<std::vector<PositionRun>> rows;  // [cp] positions of each rank's query rows
  std::vector<std::vector<KvBlock>>
      blocks;  // [cp] of each rank's cache, rows of this step included
};

struct RingStep {
  // This rank's rows against the blocks at hand. Blocks are numbered as in the cache at step 0, and
  // afterwards as in the buffer received: 0, 1, ... Rows that see nothing there are still listed.
  std::vector<AttentionSequence> sequences;
  std::vector<int32_t> send;  // blocks at hand to go on, in order; empty: no message
  int64_t n_receive = 0;      // blocks that arrive for the next step; 0: no message
};

class RingPlan {
 public:
  // window: visible tokens including the query's own; 0 = all.
  RingPlan(std::span<const RingSequence> sequences, int64_t window, int cp, int cp_rank);
  RingPlan(const RingPlan&) = delete;
  RingPlan& operator=(const RingPlan&) = delete;
  RingPlan(RingPlan&&) = default;
  RingPlan& operator=(RingPlan&&) = default;
  const std::vector<RingStep>& steps() const { return steps_; }  // [cp]

 private:
  std::vector<RingStep> steps_;
  // What the sequences borrow. A deque keeps its elements where they are.
  std::deque<std::vector<PositionRun>> runs_;
  std::deque<std::vector<KvBlock>> blocks_;
};

// Consecutive blocks as runs of positions.
std::vector<PositionRun> runs_of(std::span<const KvBlock> blocks);

}  // namespace testbed
