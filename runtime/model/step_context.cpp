#include "runtime/model/step_context.hpp"

#include <algorithm>

#include "kernels/base/hash.hpp"

namespace testbed {
namespace {

// What one cp rank's cache holds of the positions that the rows see, the rows' own included.
std::vector<KvBlock> blocks_on(
    const PlanSequence& sequence, size_t group, int64_t window, int64_t block_size, int rank) {
  const std::vector<int32_t>& table = sequence.block_tables[group];
  const int64_t end = sequence.first_position + sequence.n_rows;
  const int64_t first_seen =
      window == 0 ? 0 : std::max<int64_t>(0, sequence.first_position - window + 1);
  const auto n_blocks = static_cast<int64_t>(table.size());
  CHECK(n_blocks * block_size >= end);
  std::vector<KvBlock> blocks;
  blocks.reserve(static_cast<size_t>(n_blocks));
  for (int64_t b = first_seen / block_size; b * block_size < end; ++b) {
    if (sequence.owner(b) != rank) continue;
    const int32_t block = table[static_cast<size_t>(b)];
    CHECK(block >= 0);
    blocks.push_back({.block = block,
                      .n_tokens = static_cast<int32_t>(std::min(block_size, end - b * block_size)),
                      .first_position = b * block_size});
  }
  return blocks;
}

CpUse cp_use_of(const MicrobatchPlan& plan, int cp) {
  if (cp == 1 || plan.sequences.empty()) return CpUse::none;
  const auto n_split = std::count_if(plan.sequences.begin(),
                                     plan.sequences.end(),
                                     [](const PlanSequence& sequence) { return sequence.split; });
  CHECK(n_split == 0 || n_split == static_cast<int64_t>(plan.sequences.size()));
  return n_split > 0 ? CpUse::ring : CpUse::merge;
}

}  // namespace

MicrobatchRows::MicrobatchRows(const MicrobatchPlan& plan,
                               const std::vector<KvGroup>& kv_groups,
                               int64_t block_size,
                               int cp,
                               int cp_rank)
    : cp_use(cp_use_of(plan, cp)),
      are_copies(cp_use == CpUse::merge && cp_rank > 0),
      slots(kv_groups.size()),
      sequences(kv_groups.size()) {
  CHECK(cp >= 1 && cp_rank >= 0 && cp_rank < cp);
  reserve(plan);
  std::vector<RingSequence> ring(cp_use == CpUse::ring ? plan.sequences.size() : 0);
  int64_t n_plan_rows = 0;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlanSequence& sequence = plan.sequences[s];
    CHECK(sequence.first_row == n_plan_rows && sequence.block_tables.size() == kv_groups.size());
    CHECK(cp == 1 ? sequence.owners.empty() : !sequence.owners.empty());
    n_plan_rows += sequence.n_rows;
    const int64_t first_row = n_rows();
    if (cp_use == CpUse::ring) {
      ring[s].first_row = first_row;
      ring[s].rows.reserve(static_cast<size_t>(cp));
      for (int r = 0; r < cp; ++r) ring[s].rows.push_back(rows_on_cp_rank(sequence, block_size, r));
      add_rows(sequence, ring[s].rows[static_cast<size_t>(cp_rank)]);
    } else {
      const std::vector<PositionRun>& all =
          runs_.emplace_back(1, PositionRun{sequence.first_position, sequence.n_rows});
      add_rows(sequence, all);
      add_sequence(sequence, first_row, all, kv_groups, block_size, cp_rank);
    }
    add_slots(sequence, first_row, block_size, cp_rank);
  }
  CHECK(n_plan_rows == plan.n_rows());
  if (cp_use == CpUse::ring) plan_rings(plan, ring, kv_groups, block_size, cp, cp_rank);
  find_logits_rows(plan);
}

void MicrobatchRows::reserve(const MicrobatchPlan& plan) {
  const size_t most = plan.tokens.size();
  positions.reserve(most);
  plan_rows.reserve(most);
  keys.reserve(most);
  requests.reserve(most);
  for (std::vector<int64_t>& of_group : slots) of_group.reserve(most);
  for (std::vector<AttentionSequence>& of_group : sequences) {
    of_group.reserve(plan.sequences.size());
  }
}

void MicrobatchRows::add_rows(const PlanSequence& sequence, const std::vector<PositionRun>& rows) {
  const uint64_t request_key = mix64(static_cast<uint64_t>(sequence.request));
  for (const PositionRun& run : rows) {
    for (int64_t position = run.first; position < run.end(); ++position) {
      positions.push_back(position);
      plan_rows.push_back(sequence.first_row + position - sequence.first_position);
      keys.push_back(mix64(request_key ^ static_cast<uint64_t>(position)));
      requests.push_back(sequence.request);
    }
  }
}

void MicrobatchRows::add_slots(const PlanSequence& sequence,
                               int64_t first_row,
                               int64_t block_size,
                               int cp_rank) {
  for (size_t g = 0; g < slots.size(); ++g) {
    const std::vector<int32_t>& table = sequence.block_tables[g];
    for (int64_t row = first_row; row < n_rows(); ++row) {
      const int64_t position = positions[static_cast<size_t>(row)];
      const int64_t block = position / block_size;
      CHECK(block < static_cast<int64_t>(table.size()) && table[static_cast<size_t>(block)] >= 0);
      const bool mine = sequence.owner(block) == cp_rank;
      slots[g].push_back(
          mine ? table[static_cast<size_t>(block)] * block_size + position % block_size : -1);
    }
  }
}

void MicrobatchRows::add_sequence(const PlanSequence& sequence,
                                  int64_t first_row,
                                  const std::vector<PositionRun>& rows,
                                  const std::vector<KvGroup>& kv_groups,
                                  int64_t block_size,
                                  int cp_rank) {
  for (size_t g = 0; g < kv_groups.size(); ++g) {
    const std::vector<KvBlock>& blocks =
        blocks_.emplace_back(blocks_on(sequence, g, kv_groups[g].window, block_size, cp_rank));
    sequences[g].push_back({.first_row = first_row,
                            .n_rows = sequence.n_rows,
                            .rows = rows,
                            .blocks = blocks,
                            .keys = runs_.emplace_back(runs_of(blocks))});
  }
}

void MicrobatchRows::plan_rings(const MicrobatchPlan& plan,
                                std::vector<RingSequence>& ring,
                                const std::vector<KvGroup>& kv_groups,
                                int64_t block_size,
                                int cp,
                                int cp_rank) {
  rings.reserve(kv_groups.size());
  for (size_t g = 0; g < kv_groups.size(); ++g) {
    const int64_t window = kv_groups[g].window;
    for (size_t s = 0; s < ring.size(); ++s) {
      ring[s].blocks.clear();
      ring[s].blocks.reserve(static_cast<size_t>(cp));
      for (int r = 0; r < cp; ++r) {
        ring[s].blocks.push_back(blocks_on(plan.sequences[s], g, window, block_size, r));
      }
    }
    rings.emplace_back(ring, window, cp, cp_rank);
  }
}

// plan_rows ascend.
void MicrobatchRows::find_logits_rows(const MicrobatchPlan& plan) {
  logits_rows.reserve(plan.logits_rows.size());
  for (const LogitsRow& wanted : plan.logits_rows) {
    const auto at = std::lower_bound(plan_rows.begin(), plan_rows.end(), int64_t{wanted.row});
    const bool mine = at != plan_rows.end() && *at == wanted.row;
    logits_rows.push_back(mine ? at - plan_rows.begin() : -1);
  }
}

}  // namespace testbed
