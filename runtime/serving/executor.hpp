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
#include "runtime/serving/residual_marks.hpp"
#include "runtime/serving/sampler.hpp"
#include "runtime/serving/step_plan.hpp"

namespace testbed {

// Logits kept for the caller (--logits, checks): on tp rank 0 of the last stage.
struct CapturedRow {
  LogitsRow row;
  std::vector<float> logits;  // [vocab_size]
};

// What a layer's router chose for one row: on tp rank 0 of the stage and cp rank that has it.
struct CapturedRoute {
  int32_t request = 0;
  int32_t layer = 0;
  int64_t position = 0;
  std::vector<int32_t> ids;  // [top_k] by weight, descending
};

struct CapturedRun {
  std::vector<CapturedRow> rows;
  std::vector<CapturedRoute> routes;
};

struct ResidualHash {
  uint64_t of_tp = 0;
  uint64_t of_tp_and_cp = 0;
  bool operator==(const ResidualHash&) const = default;
};

struct ExecutorOptions {
  SamplingConfig sampling;
  bool capture_logits = false;  // and routes
  bool hash_residuals = false;  // fingerprints of what tp ranks must hold alike
  bool mark_residuals = false;  // the same of every layer and of each rank's own part
  // Every layer's output is looked through: NumericError names the first layer and the rank where
  // it is not finite (D22). Not for timed passes.
  bool check_finite = false;
};

// Whether decode steps are captured and replayed: by a device that captures, unless the host reads
// what the device computed to go on, as the routing of experts. Nor over cp: each rank's kernels
// depend on how much of the context it holds, and so when it would capture anew, which NCCL wants
// all ranks to do together.
inline bool replays_decoding(const Device& device, const ModelConfig& model, int cp) {
  return device.captures() && !model.moe && cp == 1;
}

class Executor {
 public:
  Executor(Device& device,
           Groups groups,
           const Model& model,
           const KvCache& kv,
           std::vector<KvGroup> kv_groups,
           ExecutorOptions options);

  // Runs the step on this rank.
  void submit(const StepPlan& plan);
  // First stage only: the ids sampled in a submitted step, by slot. Waits for the last stage.
  std::vector<int32_t> collect(int32_t step);
  // The end of a generation: waits for what is on its way, so that all of it is stamped, and
  // forgets the steps.
  void drain();

  const Clock& clock() const { return device_.clock(); }
  const Clock& host_clock() const { return device_.host_clock(); }
  // nullptr: a timed pass, nothing is stamped.
  void set_timeline(Timeline* timeline);
  void set_check_finite(bool check) { options_.check_finite = check; }
  std::vector<CapturedRow> take_captured() { return std::move(captured_); }
  std::vector<CapturedRoute> take_routes() { return std::move(routes_); }
  // Of the residual stream behind this rank's layers: rows that its tp group holds alike, and rows
  // that its cp group holds, too (decoding).
  ResidualHash residual_hash() const { return residual_hash_; }
  std::vector<ResidualMark> take_residual_marks() { return std::move(marks_); }
  int64_t workspace_bytes() const;

 private:
  struct Outgoing {
    Tensor activations;        // on the device
    Pending sent_inputs;       // per-layer inputs, behind the activations
    std::vector<int32_t> ids;  // on the host
    Pending sent;
    uint64_t number = 0;   // from 1, in the order of their making
    uint64_t n_grown = 0;  // how often activations was allocated
  };
  struct Sampled {
    std::vector<int32_t> ids;
    int32_t nothing = 0;  // where the word of a microbatch without ids goes
    Pending pending;      // on its way from the last stage
  };

  void run_slot(const StepPlan& plan, PipelineSlot slot);
  // What a section of this slot's work is known by to a device that replays it; 0: not replayed
  // (prompts, experts, whose routing the host reads, and passes that look at what they compute).
  // The same on all ranks of a group, whatever they hold of the rows: they capture together.
  uint64_t section_key(const StepPlan& plan, PipelineSlot slot) const;
  // Ids of the rows held, for the first chunk.
  std::vector<int32_t> row_ids(const MicrobatchPlan& microbatch, const MicrobatchRows& rows);
  // The residual at the start of a chunk: received, or embedded by work on the device alone.
  void receive(StepContext& context, const ResidualStream& stream);
  void embed(std::span<const int32_t> ids,
             const PipelineChunk& chunk,
             StepContext& context,
             ResidualStream& stream);
  void run_blocks(const PipelineChunk& chunk, StepContext& context, ResidualStream& stream);
  void send_on(StepContext& context, const ResidualStream& stream);
  TensorView make_per_layer_inputs(const PerLayerEmbedding& embedding,
                                   std::span<const int32_t> ids,
                                   const ResidualStream& stream);
  void capture_routes(const MicrobatchRows& rows, int64_t layer, const Tensor& ids);
  void require_finite(TensorView x, int64_t layer) const;
  // F32 [n logits rows, vocab_local] of the rows whose logits are wanted; empty if none are.
  TensorView make_logits(const MicrobatchPlan& microbatch, StepContext& context, TensorView normed);
  void sample_rows(const StepPlan& plan, int microbatch, StepContext& context, TensorView logits);
  std::vector<int32_t> choose_ids(const MicrobatchPlan& microbatch, TensorView logits);
  void expect_ids(const StepPlan& plan, int microbatch);
  std::vector<int32_t> resolve(const std::vector<TokenSource>& tokens);
  int32_t sampled_id(int32_t step, int32_t slot);
  Outgoing& next_outgoing();
  // n_most: the rows of the rank that holds most of them. Ranks of a group take new buffers
  // together, as a step that was captured with the old ones is captured again.
  TensorView outgoing_activations(const Shape& residual, int64_t n_most);
  Shape per_layer_shape(int64_t n_rows) const;
  bool is_first(PipelineSlot slot) const;
  bool is_last(PipelineSlot slot) const;

  uint64_t number_;  // of this process's: another's sections are others
  Device& device_;
  Groups groups_;
  const Model& model_;
  const KvCache& kv_;
  std::vector<KvGroup> kv_groups_;
  ExecutorOptions options_;
  Workspace workspace_;
  Timeline* timeline_ = nullptr;
  std::deque<Outgoing> outgoing_;
  size_t most_outgoing_ = 4;
  std::map<int32_t, std::map<int, Sampled>> sampled_;  // step -> microbatch
  std::vector<CapturedRow> captured_;
  std::vector<CapturedRoute> routes_;
  ResidualHash residual_hash_;
  std::vector<ResidualMark> marks_;
};

}  // namespace testbed
