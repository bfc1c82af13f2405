#include "runtime/plan/step_roofline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/base/errors.hpp"

namespace testbed::plan {
namespace {

// The ops of all stages, each name once.
std::vector<PlannedOp> ops_of_stages(const ModelConfig& model,
                                     const Split& split,
                                     const StepShape& shape,
                                     const StepFormats& formats) {
  std::vector<PlannedOp> all;
  for (int stage = 0; stage < split.pp; ++stage) {
    for (const PlannedOp& op : step_ops(model, position_of(split, stage), shape, formats)) {
      const auto at = std::find_if(
          all.begin(), all.end(), [&](const PlannedOp& other) { return other.name == op.name; });
      if (at == all.end()) {
        all.push_back(op);
      } else {
        at->calls += op.calls;
        at->cost += op.cost;
      }
    }
  }
  return all;
}

}  // namespace

ShardPosition position_of(const Split& split, int stage, int rank_of_stage) {
  const Mesh mesh = split.mesh();
  return shard_position({}, mesh, stage * mesh.stage_size() + rank_of_stage);
}

MathType math_on(const DeviceSpec& device, MathType wanted) {
  constexpr std::array narrow_to_wide{MathType::fp8, MathType::bf16, MathType::f16, MathType::f32};
  const auto* const first = std::find(narrow_to_wide.begin(), narrow_to_wide.end(), wanted);
  const auto* const found = std::find_if(
      first, narrow_to_wide.end(), [&](MathType type) { return device.peak_flops.contains(type); });
  if (found != narrow_to_wide.end()) return *found;
  throw ConfigError(
      fmt::format("device {} states no dense peak in {} or wider", device.name, math_name(wanted)));
}

StepRoofline step_roofline(const ModelConfig& model,
                           const Split& split,
                           const StepShape& shape,
                           const StepFormats& formats,
                           const DeviceSpec& device) {
  const Roof matrices = roof_of(device, math_on(device, formats.weights.math));
  const Roof others = roof_of(device, math_on(device, format_of(formats.activation).math));
  StepRoofline step{.shape = shape, .ops = {}, .cost = {}};
  for (const PlannedOp& op : ops_of_stages(model, split, shape, formats)) {
    const bool multiplies = op.kind == OpKind::linear || op.kind == OpKind::expert_linear;
    const Roof& roof = multiplies ? matrices : others;
    OpRoofline line{.op = op, .intensity = intensity(op.cost), .ridge = roof.ridge()};
    line.seconds = roof.seconds(static_cast<double>(op.cost.flops),
                                static_cast<double>(op.cost.memory_bytes()));
    step.cost += op.cost;
    step.seconds += line.seconds;
    if (line.memory_bound()) step.memory_seconds += line.seconds;
    step.ops.push_back(line);
  }
  step.intensity = intensity(step.cost);
  return step;
}

}  // namespace testbed::plan
