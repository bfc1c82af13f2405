// Session: one rank's loaded model and cache, ready to generate the run's requests again and again.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/commands/rank_context.hpp"
#include "runtime/commands/rank_plan.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/model/model.hpp"
#include "runtime/serving/check.hpp"
#include "runtime/serving/executor.hpp"
#include "runtime/serving/generation.hpp"

namespace testbed {

// The ranks of this rank's replica.
Replica replica_of(const RankContext& context);

class Session {
 public:
  // Loads this rank's shard with progress on rank 0.
  explicit Session(const RankContext& context);

  // One generation of the replica's requests. timeline: breakdown pass.
  GenerationResult generate_once(Timeline* timeline,
                                 int32_t repeat,
                                 const std::function<void(size_t, int32_t)>& on_token);
  // The same once more, untimed, keeping the logits and routes of this rank's rows.
  CapturedRun generate_with_logits();
  // Generates once more and returns a fingerprint of the residual stream behind this rank's layers.
  ResidualHash generate_fingerprint();
  // Generates once more and returns fingerprints of every layer of this rank's.
  std::vector<ResidualMark> generate_marks();
  // From now on every layer's output is looked at (D22): slower, not for what is timed.
  void set_check_finite(bool check) { executor_.set_check_finite(check); }

  const Model& model() const { return model_; }
  // Of this replica's generation, at most.
  int64_t most_steps() const;
  // All ranks' memory, by rank, with what the last generation used of the cache; on rank 0. All
  // ranks call it.
  std::vector<MemoryRecord> memory(const GenerationResult& last) const;

 private:
  // One generation by an executor of these options, of which the caller takes what it kept.
  void generate_watched(ExecutorOptions options, const std::function<void(Executor&)>& take);

  const RankContext& context_;
  std::vector<Request> requests_;
  SchedulerOptions scheduler_;
  Replica replica_;
  Model model_;
  KvCache kv_;
  Executor executor_;
};

}  // namespace testbed
