#include "runtime/commands/run_inputs.hpp"

#include <fmt/format.h>

#include "kernels/base/errors.hpp"
#include "runtime/commands/rank_plan.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"

namespace testbed {
namespace {

void open_model(const RunConfig& run, RunInputs& inputs) {
  const ModelLocation location = locate_model(run.model);
  inputs.model = read_model_config(location);
  if (run.layers) inputs.model = truncated_to(inputs.model, *run.layers);
  const bool random = run.weights ? *run.weights == "random" : location.kind == ModelKind::preset;
  inputs.source = random ? make_random_weights(inputs.model, run.sampling.seed)
                         : open_weights(run.weights.value_or(location.path.string()), inputs.model);
}

}  // namespace

RunInputs open_inputs(const RunConfig& config, const Mesh& mesh, ControlChannel& control) {
  if (const auto reason = why_no_injection(config.inject, mesh.world_size())) {
    throw ConfigError(*reason);
  }
  RunInputs inputs;
  std::optional<std::string> error;
  try {
    open_model(config, inputs);
  } catch (const Error& e) {
    error = e.what();
  }
  control.agree_on_mistake(error);
  if (const auto reason =
          why_illegal(inputs.model, mesh, config.parallel, weight_block(config, inputs))) {
    throw ConfigError(*reason);
  }
  inputs.workload = make_workload(config, inputs.model, mesh, control);
  return inputs;
}

}  // namespace testbed
