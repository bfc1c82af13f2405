// Executor: runs step plans on one rank. submit() works through the step's pipeline slots in
// schedule order; ids that the last stage sampled travel back to the first stage, which may already
// be working on the next step.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "kernels/workspace.hpp"
#include "parallel/pipeline.hpp"
#include "runtime/model/model.hpp"
#include "runtime/serving/kv_cache.hpp"
#include "runtime/serving/sampler.hpp"
#include "runtime/serving/step_plan.hpp"

namespace testbed {

// Logits kept for the caller (--logits, checks): on tp rank 0 of the last stage.
struct CapturedRow {
  LogitsRow row;
  std::vector<float> logits;  // [vocab_size]
};

struct ExecutorOptions {
  SamplingConfig sampling;
  bool capture_logits = false;
  bool hash_residuals = false;  // fingerprints of what tp ranks must hold alike
};

class Executor {
 public:
  Executor(Device& device,
           Groups groups,
           const Model& model,
           const KvCache& kv,
           size_t n_kv_groups,
           ExecutorOptions options);

  // Runs the step on this rank.
  void submit(const StepPlan& plan);
  // First stage only: the ids sampled in a submitted step, by slot. Waits for the last stage.
  std::vector<int32_t> collect(int32_t step);
  // The end of a generation: waits for what is on its way, so that all of it is stamped, and
  // forgets the steps.
  void drain();

  const Clock& clock() const { return device_.clock(); }
  // nullptr: a timed pass, nothing is stamped.
  void set_timeline(Timeline* timeline);
  std::vector<CapturedRow> take_captured() { return std::move(captured_); }
  uint64_t residual_hash() const { return residual_hash_; }
  int64_t workspace_bytes() const;

 private:
  struct Outgoing {
    Tensor activations;        // on the device
    std::vector<int32_t> ids;  // on the host
    Pending sent;
  };
  struct Sampled {
    std::vector<int32_t> ids;
    int32_t nothing = 0;  // where the word of a microbatch without ids goes
    Pending pending;      // on its way from the last stage
  };

  void run_slot(const StepPlan& plan, PipelineSlot slot);
  void sample_rows(const StepPlan& plan, int microbatch, StepContext& context, TensorView normed);
  std::vector<int32_t> choose_ids(const MicrobatchPlan& microbatch,
                                  StepContext& context,
                                  TensorView normed);
  void expect_ids(const StepPlan& plan, int microbatch);
  std::vector<int32_t> resolve(const std::vector<TokenSource>& tokens);
  int32_t sampled_id(int32_t step, int32_t slot);
  Outgoing& next_outgoing();
  TensorView outgoing_activations(Shape shape);
  bool is_first(PipelineSlot slot) const;
  bool is_last(PipelineSlot slot) const;

  Device& device_;
  Groups groups_;
  const Model& model_;
  const KvCache& kv_;
  size_t n_kv_groups_;
  ExecutorOptions options_;
  Workspace workspace_;
  Timeline* timeline_ = nullptr;
  std::deque<Outgoing> outgoing_;
  size_t most_outgoing_ = 4;
  std::map<int32_t, std::map<int, Sampled>> sampled_;  // step -> microbatch
  std::vector<CapturedRow> captured_;
  uint64_t residual_hash_ = 0;
};

}  // namespace testbed
