// StepPlan: what one step computes, as plain data. Rank 0 of each replica makes it (Scheduler) and
// sends it to the replica's other ranks; prefill, decode and mixed steps are the same thing.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/kv.hpp"
#include "parallel/comm/control.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

// A token id, or the id that an earlier step sampled in its slot (so that several steps can be in
// flight).
struct TokenSource {
  int32_t id = -1;  // >= 0: literal
  int32_t step = -1;
  int32_t slot = -1;
};

// The rows of one request in a microbatch. Row i is at position first_position + i. Under context
// parallelism each block of positions is kept by one cp rank, its owner; the rows of a prompt are
// computed by their block's owner, and those of a decoding request by every cp rank.
struct PlanSequence {
  int32_t request = 0;
  int32_t first_row = 0;  // within the microbatch
  int32_t n_rows = 0;
  int64_t first_position = 0;
  std::vector<std::vector<int32_t>>
      block_tables;  // [KV group][position / block_size] -> block of its owner, -1 = released
  std::vector<int32_t> owners;  // [position / block_size] -> cp rank; empty without cp
  bool split = false;           // its rows are split over cp
  int32_t owner(int64_t block) const {
    return owners.empty() ? 0 : owners[static_cast<size_t>(block)];
  }
};

// The positions of its rows that a cp rank computes: all, or if they are split those in blocks that
// the rank owns.
std::vector<PositionRun> rows_on_cp_rank(const PlanSequence& sequence,
                                         int64_t block_size,
                                         int cp_rank);

// A row whose logits are wanted. sample: its next token is chosen and takes the step's next slot.
struct LogitsRow {
  int32_t row = 0;  // within the microbatch
  int32_t request = 0;
  int64_t position = 0;
  bool sample = true;
};

struct MicrobatchPlan {
  std::vector<TokenSource> tokens;  // [n_rows]
  std::vector<PlanSequence> sequences;
  std::vector<LogitsRow> logits_rows;
  int64_t n_rows() const { return static_cast<int64_t>(tokens.size()); }
};

struct StepPlan {
  int32_t step = 0;  // within the generation
  Phase phase = Phase::prefill;
  std::vector<MicrobatchPlan> microbatches;
};

Bytes serialise(const StepPlan& plan);
StepPlan parse_step_plan(const Bytes& bytes);

}  // namespace testbed
