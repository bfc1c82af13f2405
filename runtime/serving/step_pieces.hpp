// StepPieces: which rows of which requests each step computes, and the blocks that they fill.
// Knows lengths, not tokens; the scheduler makes plans of it, and blocks_for counts with it.
// Prompts first, cut into chunks of at most max_step_tokens rows; then one token per live request
// and step. Steps are split into microbatches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/measure/timeline.hpp"
#include "runtime/serving/kv_blocks.hpp"

namespace testbed {

struct RequestLengths {
  int64_t cached_tokens = 0;
  int64_t prompt_tokens = 0;
  int64_t max_new_tokens = 0;
};

struct Piece {  // rows of one request in a microbatch
  size_t request = 0;
  int64_t n_rows = 0;
};

// The step at hand before its rows are placed.
struct StepShape {
  Phase phase = Phase::prefill;
  int32_t n_microbatches = 0;
  bool operator==(const StepShape&) const = default;
};

class StepPieces {
 public:
  struct Limits {
    int64_t max_step_tokens = 2048;
    int n_microbatches = 1;
  };
  StepPieces(std::span<const RequestLengths> requests,
             Limits limits,
             BlockPlacement placement,
             const std::vector<int64_t>& n_blocks);

  // nullopt when nothing is left.
  std::optional<StepShape> next_shape() const;
  // Moves on to that step: the blocks that no query from here on sees are free. Steps run in order
  // on every rank, so a block may be given away while an earlier step still reads it.
  std::vector<std::vector<Piece>> next();  // [microbatch]
  // For each piece, in order: its rows are planned and have their blocks.
  void place(const Piece& piece);
  // After the last one: the pools' peaks.
  void step_placed() { placer_.note_peaks(); }
  // A request that needs no more steps; a step of it may still be out.
  void stop(size_t request);

  bool prefilled(size_t request) const { return left_of_prompt(live_[request]) == 0; }
  // Prompt tokens planned.
  int64_t n_prefilled(size_t request) const { return live_[request].n_prefilled; }
  int64_t n_planned(size_t request) const { return live_[request].n_planned; }  // new tokens
  const RequestBlocks& blocks(size_t request) const { return live_[request].blocks; }
  const BlockPool& pool(int cp_rank, size_t group) const { return placer_.pool(cp_rank, group); }

 private:
  struct Live {
    RequestLengths lengths;
    RequestBlocks blocks;
    int64_t n_prefilled = 0;
    int64_t n_planned = 0;
    bool stopped = false;
  };
  static int64_t left_of_prompt(const Live& live) {
    return live.lengths.prompt_tokens - live.n_prefilled;
  }
  static bool decodes(const Live& live) {
    return !live.stopped && live.n_planned < live.lengths.max_new_tokens;
  }
  void release_behind();
  std::vector<Piece> prefill_pieces() const;
  std::vector<Piece> decode_pieces() const;

  Limits limits_;
  BlockPlacer placer_;
  std::vector<Live> live_;
  int64_t left_of_prompts_ = 0;  // of all requests
  size_t next_prompt_ = 0;       // prompts before it are planned
  int64_t n_decoding_ = 0;       // requests that want more tokens
  std::vector<size_t> placed_;   // requests with rows in the last step
};

}  // namespace testbed
