// RunInputs: what a run reads before it starts: the model, where its weights are, the requests.
// Read once per process and shared by its ranks.
#pragma once

#include <memory>

#include "parallel/comm/control.hpp"
#include "parallel/mesh.hpp"
#include "runtime/commands/workload.hpp"
#include "runtime/config/run_config.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed {

struct RunInputs {
  ModelConfig model;
  std::unique_ptr<WeightSource> source;
  Workload workload;
};

// All processes call it; a process that sees other files than rank 0 is named. Throws ConfigError
// or WeightsError for a user's mistake, an illegal split among them, on every process.
RunInputs open_inputs(const RunConfig& config, const Mesh& mesh, ControlChannel& control);

}  // namespace testbed
