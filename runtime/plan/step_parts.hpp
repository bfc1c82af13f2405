// The parts of a step's ops, each after the file of runtime/model that runs them.
#pragma once

#include "runtime/plan/op_list.hpp"
#include "runtime/plan/step_rows.hpp"

namespace testbed::plan {

// One rank's step.
struct StepParts {
  const ModelConfig& model;
  const ShardPosition& position;
  const StepShape& shape;
  const StepRows& rows;
  OpList& ops;

  int64_t m() const { return rows.n_rows(); }
  int64_t first_of_tp(int64_t n) const { return position.tp_rank == 0 ? n : 0; }
  MatrixShape replicated(int64_t n, int64_t k, int64_t bias_rows = 0) const {
    return {.n = n, .k = k, .bias_rows = bias_rows, .replica = position.tp_rank != 0};
  }
};

// attention.cpp
void add_attention(const StepParts& step, int64_t layer);
// latent_attention.cpp
void add_latent_attention(const StepParts& step);
// experts.cpp: GatedMlp, this rank's share of a width d_ff; MoeMlp.
void add_mlp(const StepParts& step, int64_t d_ff, bool with_bias);
void add_experts(const StepParts& step);

}  // namespace testbed::plan
