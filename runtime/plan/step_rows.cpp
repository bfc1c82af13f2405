#include "runtime/plan/step_rows.hpp"

#include <algorithm>
#include <limits>

#include "kernels/base/check.hpp"

namespace testbed::plan {
namespace {

// The cached tokens are placed like a prompt, decoded ones behind them.
RequestBlocks placed(BlockPlacer& placer, size_t request, const StepShape& shape) {
  RequestBlocks blocks = placer.no_blocks(request);
  placer.add_cached(blocks, shape.n_cached);
  if (!shape.decode) {
    placer.add_prompt(blocks, shape.n_new);
    return blocks;
  }
  for (int64_t i = 0; i < shape.n_new; ++i) placer.add_decoded(blocks);
  return blocks;
}

MicrobatchPlan microbatch_of(const std::vector<KvGroup>& groups, int cp, const StepShape& shape) {
  const std::vector<int64_t> any_number(groups.size(), std::numeric_limits<int32_t>::max());
  BlockPlacer placer({.groups = groups,
                      .block_size = kv_block_size,
                      .cp = cp,
                      .cp_placement = CpPlacement::zigzag},
                     any_number);
  MicrobatchPlan plan;
  plan.tokens.resize(static_cast<size_t>(shape.n_tokens()));
  plan.sequences.reserve(static_cast<size_t>(shape.batch));
  plan.logits_rows.reserve(static_cast<size_t>(shape.batch));
  for (int64_t request = 0; request < shape.batch; ++request) {
    RequestBlocks blocks = placed(placer, static_cast<size_t>(request), shape);
    const int64_t first_row = request * shape.n_new;
    plan.sequences.push_back({.request = static_cast<int32_t>(request),
                              .first_row = static_cast<int32_t>(first_row),
                              .n_rows = static_cast<int32_t>(shape.n_new),
                              .first_position = shape.n_cached,
                              .block_tables = std::move(blocks.tables),
                              .owners = std::move(blocks.owners),
                              .split = !shape.decode});
    plan.logits_rows.push_back({.row = static_cast<int32_t>(first_row + shape.n_new - 1)});
  }
  return plan;
}

int64_t n_blocks_of(int64_t n_tokens) { return (n_tokens + kv_block_size - 1) / kv_block_size; }

}  // namespace

StepRows::StepRows(const ModelConfig& model, const ShardPosition& position, const StepShape& shape)
    : cp_rank_(position.cp_rank),
      n_rows_(static_cast<size_t>(position.cp), shape.n_tokens()),
      n_stored_(shape.n_tokens()),
      n_logits_(shape.batch),
      batch_(shape.batch),
      contiguous_(shape.n_new, shape.context()),
      any_(contiguous_.view()) {
  if (position.cp > 1) place_over_cp(model, position, shape);
}

void StepRows::place_over_cp(const ModelConfig& model,
                             const ShardPosition& position,
                             const StepShape& shape) {
  groups_ = kv_groups(model);
  const MicrobatchPlan plan = microbatch_of(groups_, position.cp, shape);
  rows_.emplace(plan, groups_, kv_block_size, position.cp, position.cp_rank);
  cp_use_ = rows_->cp_use;
  const auto held = [](const std::vector<int64_t>& of_row) {
    return std::count_if(of_row.begin(), of_row.end(), [](int64_t row) { return row >= 0; });
  };
  if (cp_use_ == CpUse::ring) {
    n_rows_.assign(static_cast<size_t>(position.cp), 0);
    for (const PlanSequence& sequence : plan.sequences) count_rows(sequence);
    n_logits_ = held(rows_->logits_rows);
  }
  CHECK(n_rows() == rows_->n_rows());
  n_stored_ = held(rows_->slots.front());
}

void StepRows::count_rows(const PlanSequence& sequence) {
  for (size_t cp_rank = 0; cp_rank < n_rows_.size(); ++cp_rank) {
    for (const PositionRun& run :
         rows_on_cp_rank(sequence, kv_block_size, static_cast<int>(cp_rank))) {
      n_rows_[cp_rank] += run.n;
    }
  }
}

size_t StepRows::group_of(int64_t window) const {
  const auto group = std::find_if(
      groups_.begin(), groups_.end(), [&](const KvGroup& g) { return g.window == window; });
  CHECK(group != groups_.end());
  return static_cast<size_t>(group - groups_.begin());
}

std::vector<AttendedPart> StepRows::parts(int64_t window) const {
  if (!rows_) {
    return {{.sequences = {&any_, 1},
             .n_alike = batch_,
             .n_blocks = batch_ * n_blocks_of(any_.keys.front().n)}};
  }
  const auto part = [](const std::vector<AttentionSequence>& sequences) {
    AttendedPart at_hand{.sequences = sequences};
    for (const AttentionSequence& sequence : sequences) {
      at_hand.n_blocks += static_cast<int64_t>(sequence.blocks.size());
    }
    return at_hand;
  };
  const size_t group = group_of(window);
  if (cp_use_ == CpUse::merge) return {part(rows_->sequences[group])};
  const std::vector<RingStep>& steps = rows_->rings[group].steps();
  std::vector<AttendedPart> parts;
  parts.reserve(steps.size());
  int64_t n_arrived = 0;
  for (const RingStep& step : steps) {
    parts.push_back(part(step.sequences));  // none: this rank has no rows, and still sends
    parts.back().n_arrived = n_arrived;
    parts.back().n_leaving = static_cast<int64_t>(step.send.size());
    n_arrived = step.n_receive;
  }
  return parts;
}

}  // namespace testbed::plan
