// Scheduler: makes the step plans of one replica. Touches no device and no communicator. Prompts
// first, cut into chunks of at most max_step_tokens rows; then one token per live request and step.
// Steps are split into microbatches.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/serving/kv_cache.hpp"
#include "runtime/serving/step_plan.hpp"

namespace testbed {

struct Request {
  int32_t index = 0;  // of the whole job
  std::vector<int32_t> prompt_ids;
  int64_t max_new_tokens = 0;
  int64_t cached_tokens =
      0;  // positions taken as already cached (--context): the prompt starts behind them
};

struct SchedulerOptions {
  std::vector<KvGroup> kv_groups;
  int64_t block_size = 16;
  int64_t max_step_tokens = 2048;
  int n_microbatches = 1;         // at most; a step with fewer pieces has fewer
  std::vector<int32_t> stop_ids;  // empty: run to max_new_tokens
  bool all_prompt_logits = false;
  // Plan the next decode step before the last one's ids are known, so that a pipeline is not
  // drained between steps. A request that turns out to have stopped has then computed one token too
  // many, which is dropped.
  bool run_ahead = false;
};

// Blocks of each KV group that the requests need at once.
std::vector<int64_t> blocks_for(const std::vector<Request>& requests,
                                const SchedulerOptions& options);

class Scheduler {
 public:
  Scheduler(std::vector<Request> requests, SchedulerOptions options);

  // The next step; nullopt when nothing is left to plan. With run_ahead a decode step may be
  // planned while one step is still out; otherwise update() must have been called for every step
  // before.
  std::optional<StepPlan> next();
  // The ids sampled in a step, by slot.
  void update(int32_t step, const std::vector<int32_t>& ids);

  // Generated so far, the stop token excluded, by position in the constructor's list.
  const std::vector<int32_t>& generated(size_t request) const { return live_[request].generated; }
  // Ids accepted by the last update, as (position in the list, id), for streaming.
  const std::vector<std::pair<size_t, int32_t>>& last_accepted() const { return last_accepted_; }
  size_t n_requests() const { return live_.size(); }
  // Blocks of a KV group in use when most were, and the tokens in them then.
  int64_t peak_blocks(size_t group) const { return usage_[group].blocks; }
  int64_t peak_tokens(size_t group) const { return usage_[group].tokens; }

 private:
  struct Live {
    Request request;
    RequestBlocks blocks;
    int64_t n_prefilled = 0;  // prompt tokens planned
    int64_t n_planned = 0;    // new tokens planned
    std::vector<int32_t> generated;
    int32_t last_step = -1;  // that samples its newest token
    int32_t last_slot = -1;
    bool stopped = false;
    int64_t next_position() const {
      const int64_t decoded = n_planned > 0 ? n_planned - 1 : 0;
      return request.cached_tokens + n_prefilled + decoded;
    }
    bool prefilled() const {
      return n_prefilled == static_cast<int64_t>(request.prompt_ids.size());
    }
  };
  struct Piece {  // rows of one request in a step
    size_t request;
    int64_t n_rows;
  };

  std::vector<Piece> prefill_pieces() const;
  std::vector<Piece> decode_pieces() const;
  StepPlan plan_step(Phase phase, const std::vector<Piece>& pieces);
  void note_usage();
  void append(StepPlan& plan, MicrobatchPlan& microbatch, const Piece& piece);

  SchedulerOptions options_;
  std::vector<Live> live_;
  std::vector<BlockPool> pools_;
  std::vector<std::vector<size_t>> slots_;  // [step][slot] -> request
  std::vector<std::pair<size_t, int32_t>> last_accepted_;
  int32_t n_updated_ = 0;
  struct Usage {
    int64_t blocks = 0;
    int64_t tokens = 0;
  };
  std::vector<Usage> usage_;  // [KV group]
};

}  // namespace testbed
