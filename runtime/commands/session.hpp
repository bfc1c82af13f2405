// Session: one rank's loaded model and cache, ready to generate the run's requests again and again.
#pragma once

#include <memory>
#include <vector>

#include "runtime/commands/rank_context.hpp"
#include "runtime/commands/workload.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/model/model.hpp"
#include "runtime/serving/check.hpp"
#include "runtime/serving/executor.hpp"
#include "runtime/serving/generation.hpp"

namespace testbed {

// Where this rank stands in its replica's split, and the replica's ranks.
ShardPosition shard_position(const RankContext& context);
Replica replica_of(const RankContext& context);
ResidentWeights resident_weights(const RunConfig& config);
// Elements of a quantisation block along the columns of the layers' matrices; 1 if none is
// quantised.
int64_t weight_block(const WeightSource& source);

// How the run's steps are scheduled. Synthetic requests run to their last token; real ones stop at
// the model's stop ids unless --ignore-eos.
SchedulerOptions scheduler_options(const RankContext& context, const ModelConfig& model);

// All ranks' memory, planned from shapes. All ranks call it; throws ConfigError on all of them if
// it does not fit.
std::vector<MemoryRecord> plan_memory(const RankContext& context,
                                      const ModelConfig& model,
                                      const WeightSource& source,
                                      const Workload& workload);

class Session {
 public:
  // Loads this rank's shard with progress on rank 0.
  Session(const RankContext& context,
          const ModelConfig& model,
          const WeightSource& source,
          const Workload& workload,
          std::vector<MemoryRecord> planned);

  // One generation of the replica's requests. timeline: breakdown pass.
  GenerationResult generate_once(Timeline* timeline,
                                 int32_t repeat,
                                 const std::function<void(size_t, int32_t)>& on_token);
  // The same once more, untimed, keeping the logits (on tp rank 0 of the last stage).
  std::vector<CapturedRow> generate_with_logits();

  const Model& model() const { return model_; }
  // Of this replica's generation, at most.
  int64_t most_steps() const;
  // All ranks' memory, by rank; what the last generation used of the cache filled in. All ranks
  // call it.
  std::vector<MemoryRecord> memory(const GenerationResult& last) const;

 private:
  const RankContext& context_;
  std::vector<Request> requests_;
  SchedulerOptions scheduler_;
  Replica replica_;
  std::vector<MemoryRecord> planned_;
  Model model_;
  KvCache kv_;
  Executor executor_;
};

}  // namespace testbed
