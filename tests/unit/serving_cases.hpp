// Jobs and plans for tests of what the scheduler makes.
#pragma once

#include <random>
#include <vector>

#include "runtime/serving/scheduler.hpp"

namespace testbed {

inline Request request_of(int32_t index, int64_t n_prompt, int64_t n_new, int64_t n_cached = 0) {
  Request request{
      .index = index, .prompt_ids = {}, .max_new_tokens = n_new, .cached_tokens = n_cached};
  for (int64_t i = 0; i < n_prompt; ++i) {
    request.prompt_ids.push_back(static_cast<int32_t>(10 + i));
  }
  return request;
}

// What sampling would give back for a plan, if it always chose `id`.
inline std::vector<int32_t> ids_for(const StepPlan& plan, int32_t id) {
  std::vector<int32_t> ids;
  for (const MicrobatchPlan& microbatch : plan.microbatches) {
    for (const LogitsRow& row : microbatch.logits_rows) {
      if (row.sample) ids.push_back(id);
    }
  }
  return ids;
}

// Draws of whole numbers, ends included.
class Draws {
 public:
  explicit Draws(uint32_t seed) : random_(seed) {}
  int operator()(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random_);
  }

 private:
  std::mt19937 random_;
};

struct Job {
  std::vector<Request> requests;
  SchedulerOptions options;
};

// Ragged requests with and without cached tokens, full and window groups, chunks and microbatches.
inline Job random_job(Draws& draw) {
  Job job;
  const int n_requests = draw(1, 4);
  const int64_t n_cached = draw(0, 1) * draw(1, 40);
  for (int32_t r = 0; r < n_requests; ++r) {
    job.requests.push_back(request_of(r, draw(1, 60), draw(1, 30), n_cached));
  }
  job.options.kv_groups = {{.window = draw(1, 24), .layers = {0}}};
  if (draw(0, 2) > 0) job.options.kv_groups.push_back({.window = 0, .layers = {1}});
  job.options.block_size = draw(1, 16);
  job.options.max_step_tokens = draw(1, 90);
  job.options.n_microbatches = draw(1, 3);
  job.options.cp = draw(1, 8);
  job.options.cp_placement = draw(0, 1) == 0 ? CpPlacement::zigzag : CpPlacement::contiguous;
  job.options.run_ahead = draw(0, 1) == 1;
  return job;
}

}  // namespace testbed
