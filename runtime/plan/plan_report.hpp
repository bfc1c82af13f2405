// PlanReport: the closed forms for one model on one cluster, as plain data for the table and the
// JSON (runtime/report/plan_table.hpp, plan_json.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/plan/batch_limit.hpp"
#include "runtime/plan/fits.hpp"
#include "runtime/plan/levers.hpp"
#include "runtime/plan/step_roofline.hpp"

namespace testbed::plan {

struct PlanInputs {
  ModelConfig model;
  ClusterSpec cluster;
  Split split;
  int64_t batch = 1;    // of each replica
  int64_t context = 1;  // tokens that a decode step's query sees, its own included
  int64_t prompt_tokens = 1;
  StepFormats formats;
};

// What one step sends over tp and pp, at a link's line rate: bandwidth alone, no latency. What cp
// and ep send is in a simulation's record.
struct StepLinks {
  std::string link;          // preset's name
  double bytes_per_s = 0.0;  // one direction
  bool crosses_nodes = false;
  int64_t all_reduces = 0;                 // of all layers, one after the embedding
  int64_t all_gathers = 0;                 // of experts' slices
  int64_t all_reduce_bytes_per_layer = 0;  // the last layer
  int64_t all_reduce_bytes = 0;            // payload of a step
  int64_t wire_bytes = 0;                  // per device, ring; all-gathers included
  double seconds = 0.0;
  int64_t pipeline_bytes = 0;  // between two stages
};

struct StepPlanned {
  StepRoofline roofline;           // of one device of each stage
  OpCost all_devices;              // as in a record's phase
  std::optional<StepLinks> links;  // none on one device
};

struct Bubble {
  int64_t n_microbatches = 0;
  std::optional<double> flushed;  // drained between steps: prefill
  double steady = 0.0;            // not drained: decode
};

struct ZeroStage {
  int stage = 0;
  double bytes_per_device = 0.0;
  double saving = 1.0;
  int64_t traffic_per_parameter = 0;  // elements
};

struct TrainingPlan {
  int64_t bytes_per_parameter = 0;
  int64_t n_bytes = 0;  // before activations
  int64_t cards = 0;
  int64_t flops_per_token = 0;
  int64_t flops_per_token_recomputed = 0;
  int64_t n_devices = 0;  // data-parallel, of the stages below
  std::vector<ZeroStage> zero;
};

struct PlanReport {
  PlanInputs inputs;
  int64_t n_parameters = 0;
  StepPlanned decode;
  StepPlanned prefill;
  int64_t embedding_bytes = 0;  // of the table, of which a step reads its tokens' rows
  Fit fit;
  std::vector<Fit> fits;             // by tp, the rest of the split as it is
  std::vector<int64_t> cards;        // for the weights and one user, at user_contexts
  double ridge = 0.0;                // FLOP/byte, of the matrices
  double batch_limit_weights = 0.0;  // B* without a cache
  std::vector<BatchLimit> batch_limits;
  std::vector<Lever> levers;
  TrainingPlan training;
  std::vector<Bubble> bubbles;  // pp > 1
};

// Throws ConfigError for a split that is illegal or larger than the cluster.
PlanReport make_plan(const PlanInputs& inputs);

// What a reader must know before using the figures: beyond the model's positions, does not fit.
std::vector<std::string> labels_of(const PlanReport& report);

}  // namespace testbed::plan
