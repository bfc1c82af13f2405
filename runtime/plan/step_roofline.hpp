// The roofline of each op of a step, and the time of the step if every op ran at its roof.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/mesh.hpp"
#include "runtime/plan/roofline.hpp"
#include "runtime/plan/step_ops.hpp"

namespace testbed::plan {

// The devices of a mesh; each of its dp replicas has a batch of its own.
struct Split {
  int tp = 1;
  int pp = 1;
  int cp = 1;
  int ep = 1;
  int dp = 1;
  Mesh mesh() const { return {.tp = tp, .cp = cp, .dp = dp, .pp = pp, .ep = ep}; }
  int n_devices() const { return mesh().world_size(); }
};

// Of a rank of the stage. Rank 0 has the largest share of heads, experts and vocabulary.
ShardPosition position_of(const Split& split, int stage, int rank_of_stage = 0);

struct OpRoofline {
  PlannedOp op;
  double intensity = 0.0;  // FLOP/byte
  double ridge = 0.0;
  double seconds = 0.0;  // at the roof
  bool memory_bound() const { return intensity < ridge; }
};

struct StepRoofline {
  StepShape shape;
  std::vector<OpRoofline> ops;
  OpCost cost;  // of all ops
  double intensity = 0.0;
  double seconds = 0.0;         // of all ops, one after another
  double memory_seconds = 0.0;  // the part in memory-bound ops
};

// What the device multiplies in: the format's own type if it has it, else the narrowest wider one
// (fp8 -> bf16 -> f16 -> f32). Throws ConfigError if it has none.
MathType math_on(const DeviceSpec& device, MathType wanted);

// One pass of the batch through all stages, on rank 0 of each: the time from a token to the
// next, links not counted. Matrices are multiplied in the weights' math, the rest in the
// activations'.
StepRoofline step_roofline(const ModelConfig& model,
                           const Split& split,
                           const StepShape& shape,
                           const StepFormats& formats,
                           const DeviceSpec& device);

}  // namespace testbed::plan
