// The rows of one step on one rank and what they attend to, placed as the scheduler would place
// them: those of the whole batch in one microbatch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/contiguous_sequence.hpp"
#include "runtime/model/model.hpp"
#include "runtime/model/step_context.hpp"
#include "runtime/plan/step_shape.hpp"

namespace testbed::plan {

// What the rows see at once: their own cache, or what is at hand at one step of the cp ring.
struct AttendedPart {
  std::span<const AttentionSequence> sequences;  // those with rows here
  int64_t n_alike = 1;                           // sequences of the batch that each stands for
  int64_t n_blocks = 0;                          // that hold what is seen, window or not
  int64_t n_arrived = 0;                         // blocks at hand that another rank sent
  int64_t n_leaving = 0;                         // blocks sent on
};

class StepRows {
 public:
  StepRows(const ModelConfig& model, const ShardPosition& position, const StepShape& shape);
  StepRows(const StepRows&) = delete;
  StepRows& operator=(const StepRows&) = delete;

  CpUse cp_use() const { return cp_use_; }
  int64_t n_rows() const { return n_rows_of(cp_rank_); }
  int64_t n_rows_of(int cp_rank) const { return n_rows_[static_cast<size_t>(cp_rank)]; }
  int64_t n_stored() const { return n_stored_; }  // rows whose keys are kept here
  int64_t n_logits() const { return n_logits_; }  // rows whose logits are wanted
  // One part, or one for each step of the ring.
  std::vector<AttendedPart> parts(int64_t window) const;

 private:
  void place_over_cp(const ModelConfig& model,
                     const ShardPosition& position,
                     const StepShape& shape);
  void count_rows(const PlanSequence& sequence);
  size_t group_of(int64_t window) const;

  int cp_rank_;
  CpUse cp_use_ = CpUse::none;
  std::vector<int64_t> n_rows_;  // [cp]
  int64_t n_stored_ = 0;
  int64_t n_logits_ = 0;
  int64_t batch_;
  ContiguousSequence contiguous_;  // without cp
  AttentionSequence any_;          // of the batch, without cp
  std::vector<KvGroup> groups_;
  std::optional<MicrobatchRows> rows_;  // with cp
};

}  // namespace testbed::plan
