// What follows for one rank from the run's configuration and mesh, before anything is loaded: its
// place in the split, how its steps are scheduled, what it will hold.
#pragma once

#include "runtime/commands/run_inputs.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/model/model.hpp"
#include "runtime/serving/scheduler.hpp"

namespace testbed {

// Whether experts are reached by all-to-all; else tokens stay where they are.
bool exchanges_tokens(const ParallelConfig& parallel, const Mesh& mesh);
ShardPosition shard_position(const RunConfig& config, const Mesh& mesh, int rank);
ResidentWeights resident_weights(const RunConfig& config);
// Elements of a quantisation block along the columns of the layers' matrices; 1 if none is
// quantised.
int64_t weight_block(const WeightSource& source);

// How the run's steps are scheduled. Synthetic requests run to their last token; real ones stop at
// the model's stop ids unless --ignore-eos.
SchedulerOptions scheduler_options(const RunConfig& config,
                                   const ModelConfig& model,
                                   const Mesh& mesh);
// The same for these requests, with pools as large as they need.
SchedulerOptions scheduler_options(const RunConfig& config,
                                   const ModelConfig& model,
                                   const Mesh& mesh,
                                   const std::vector<Request>& requests);

// What the rank will hold, from shapes; capacity_bytes is left to the caller.
MemoryRecord planned_memory(const RunConfig& config,
                            const RunInputs& inputs,
                            const Mesh& mesh,
                            int rank);

}  // namespace testbed
