// What follows for one rank from the run's configuration and mesh, before anything is loaded: how
// its steps are scheduled, what it will hold.
#pragma once

#include "runtime/commands/run_inputs.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/model/model.hpp"
#include "runtime/serving/scheduler.hpp"

namespace testbed {

ResidentWeights resident_weights(const RunConfig& config);
// What the columns of the layers' matrices are cut at multiples of: blocks as stored, groups as
// held; 1 if there are none.
int64_t weight_block(const RunConfig& config, const RunInputs& inputs);

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
