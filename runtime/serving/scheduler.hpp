// Scheduler: makes the step plans of one replica. Touches no device and no communicator. Which rows
// a step has and where they are kept is StepPieces'; this adds the tokens, what is sampled and
// which plans may be made ahead.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/config/run_config.hpp"
#include "runtime/serving/step_pieces.hpp"
#include "runtime/serving/step_plan.hpp"

namespace testbed {

struct Request {
  int32_t index = 0;  // of the whole job
  std::vector<int32_t> prompt_ids;
  int64_t max_new_tokens = 0;
  // Positions taken as already cached (--context): the prompt starts behind them.
  int64_t cached_tokens = 0;
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
  // Context parallelism: who owns the blocks of a prompt. max_step_tokens is of all ranks together.
  int cp = 1;
  CpPlacement cp_placement = CpPlacement::zigzag;
  // What the KV cache has of each group, on each cp rank: a plan that needs more is a broken
  // invariant. Empty: no cache is at hand, nothing is held to it.
  std::vector<int64_t> pool_blocks;
};

// Blocks of each KV group that the requests need at once, if none stops early; under cp on the rank
// that needs most. Counted by placing all steps.
std::vector<int64_t> blocks_for(const std::vector<Request>& requests,
                                const SchedulerOptions& options);

class Scheduler {
 public:
  Scheduler(std::vector<Request> requests, SchedulerOptions options);

  // What next() will plan; nullopt when nothing is left.
  std::optional<StepShape> next_shape() const { return pieces_.next_shape(); }
  // The next step; nullopt when nothing is left to plan. With run_ahead a decode step may be
  // planned while one step is still out; otherwise update() must have been called for every step
  // before.
  std::optional<StepPlan> next();
  // A step without rows, for a replica that others wait for.
  StepPlan idle_step(StepShape shape);
  // The ids sampled in a step, by slot.
  void update(int32_t step, const std::vector<int32_t>& ids);

  // Generated so far, the stop token excluded, by position in the constructor's list.
  const std::vector<int32_t>& generated(size_t request) const {
    return answers_[request].generated;
  }
  // Ids accepted by the last update, as (position in the list, id), for streaming.
  const std::vector<std::pair<size_t, int32_t>>& last_accepted() const { return last_accepted_; }
  size_t n_requests() const { return requests_.size(); }
  // The blocks of a cp rank in use when most were, and the tokens in them then.
  BlockPool::Usage peak_usage(int cp_rank, size_t group) const {
    return pieces_.pool(cp_rank, group).peak();
  }

 private:
  struct Answer {
    std::vector<int32_t> generated;
    int32_t last_step = -1;  // that samples its newest token
    int32_t last_slot = -1;
    bool stopped = false;
  };

  StepPlan new_step(Phase phase);
  void append(StepPlan& plan, MicrobatchPlan& microbatch, const Piece& piece);
  TokenSource newest_token(size_t request) const;

  std::vector<Request> requests_;
  SchedulerOptions options_;
  StepPieces pieces_;
  std::vector<Answer> answers_;             // [request]
  std::vector<std::vector<size_t>> slots_;  // [step][slot] -> request
  std::vector<std::pair<size_t, int32_t>> last_accepted_;
  int32_t n_updated_ = 0;
};

}  // namespace testbed
