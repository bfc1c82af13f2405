#include "parallel/ring_plan.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

// Whether any query in `rows` sees any token of the block.
bool sees(std::span<const PositionRun> rows, const KvBlock& block, int64_t window) {
  const int64_t last_key = block.first_position + block.n_tokens - 1;
  return std::any_of(rows.begin(), rows.end(), [&](const PositionRun& run) {
    const bool unmasked = run.end() > block.first_position;
    return run.n > 0 && unmasked && (window == 0 || run.first < last_key + window);
  });
}

int64_t n_positions(std::span<const PositionRun> runs) {
  return std::accumulate(
      runs.begin(), runs.end(), int64_t{0}, [](int64_t n, PositionRun run) { return n + run.n; });
}

// A block on its way around the ring: as it lies in its owner's cache, and the number of steps
// after which no rank needs it any more.
struct Traveller {
  KvBlock block;
  int last_step = 0;
};

// [sequence][block] of one rank.
std::vector<std::vector<Traveller>> travellers_of(std::span<const RingSequence> sequences,
                                                  int64_t window,
                                                  int cp,
                                                  int owner) {
  std::vector<std::vector<Traveller>> travellers(sequences.size());
  for (size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<KvBlock>& blocks = sequences[s].blocks[static_cast<size_t>(owner)];
    travellers[s].reserve(blocks.size());
    for (const KvBlock& block : blocks) {
      int last = cp - 1;
      const auto rank_at = [&](int step) { return static_cast<size_t>((owner + step) % cp); };
      while (last > 0 && !sees(sequences[s].rows[rank_at(last)], block, window)) --last;
      travellers[s].push_back({block, last});
    }
  }
  return travellers;
}

}  // namespace

std::vector<PositionRun> runs_of(std::span<const KvBlock> blocks) {
  std::vector<PositionRun> runs;
  for (const KvBlock& block : blocks) {
    if (!runs.empty() && runs.back().end() == block.first_position) {
      runs.back().n += block.n_tokens;
    } else {
      runs.push_back({block.first_position, block.n_tokens});
    }
  }
  return runs;
}

RingPlan::RingPlan(std::span<const RingSequence> sequences, int64_t window, int cp, int cp_rank)
    : steps_(static_cast<size_t>(cp)) {
  CHECK(cp >= 1 && cp_rank >= 0 && cp_rank < cp);
  std::vector<std::span<const PositionRun>> rows;  // [sequence] of this rank
  rows.reserve(sequences.size());
  for (const RingSequence& sequence : sequences) {
    CHECK(sequence.rows.size() == static_cast<size_t>(cp));
    CHECK(sequence.blocks.size() == static_cast<size_t>(cp));
    rows.emplace_back(runs_.emplace_back(sequence.rows[static_cast<size_t>(cp_rank)]));
  }
  for (int step = 0; step < cp; ++step) {
    RingStep& at = steps_[static_cast<size_t>(step)];
    const int owner = (cp_rank - step + cp) % cp;
    int32_t n_at_hand = 0;
    const auto travellers = travellers_of(sequences, window, cp, owner);
    for (size_t s = 0; s < sequences.size(); ++s) {
      std::vector<KvBlock>& visible = blocks_.emplace_back();
      for (const Traveller& traveller : travellers[s]) {
        if (traveller.last_step < step) continue;  // has not come this far
        KvBlock block = traveller.block;
        if (step > 0) block.block = n_at_hand;
        ++n_at_hand;
        if (traveller.last_step > step) at.send.push_back(block.block);
        if (sees(rows[s], block, window)) visible.push_back(block);
      }
      const int64_t n_rows = n_positions(rows[s]);
      if (n_rows == 0) continue;
      at.sequences.push_back({.first_row = sequences[s].first_row,
                              .n_rows = n_rows,
                              .rows = rows[s],
                              .blocks = visible,
                              .keys = runs_.emplace_back(runs_of(visible))});
    }
    if (step > 0) steps_[static_cast<size_t>(step) - 1].n_receive = n_at_hand;
  }
}

}  // namespace testbed
