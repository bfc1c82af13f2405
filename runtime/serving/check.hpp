// The sharded computation against one rank, before anything is timed (--check): the same short
// prompts through the first layers and the head (or the whole model), on one rank and in the run's
// split.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "runtime/config/run_config.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/model/model.hpp"
#include "runtime/serving/generation.hpp"

namespace testbed {

struct CheckInput {
  CheckMode mode = CheckMode::layers;
  const ModelConfig& config;
  const WeightSource& source;
  ResidentWeights wanted = {};
  ShardPosition position;  // of this rank in the run's split
  int n_microbatches = 1;
  CpPlacement cp_placement = CpPlacement::zigzag;
  Groups groups;
  Replica replica;
  Device& device;
  // A device of the same kind and threads that computes in another dtype.
  std::function<std::unique_ptr<Device>(DType)> make_device;
};

// What the message of a failed check contains: every rank throws rank 0's.
inline constexpr std::string_view failed_check = "check failed";

// All ranks call it. The record is complete on world rank 0. Throws Error (exit code 3) on every
// rank if the split's logits are further from one rank's than rounding explains, or ranks that must
// hold the same values differ in a bit.
//
// Models with experts are compared in f32, whatever the run computes in: bf16 chooses other
// experts. Tolerance. bf16: both runs round differently, each about as far from the f32 result as
// the other, so one rank computes in f32 too and the split may differ from it by 4 times as much as
// one rank's bf16 does. f32: f32 against f64 was seen to differ by up to 7.5e-5 on five layers with
// logits up to 13 (the fixtures' README); 2e-4 per 13 of the largest logit, growing with the square
// root of the layers.
ChecksRecord check_against_one_rank(const CheckInput& input);

}  // namespace testbed
