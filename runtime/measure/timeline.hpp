// Timeline: what one rank did in a breakdown pass, as a flat list of stamped events. Devices and
// communicators report to it; the runtime tells it where in the model they are. Rank 0 gathers all
// timelines and analysis.hpp makes the RunRecord from them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/op_cost.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/control.hpp"
#include "parallel/mesh.hpp"

namespace testbed {

enum class Phase : uint8_t { prefill, decode, mixed };
constexpr std::string_view phase_name(Phase phase) {
  constexpr std::string_view names[] = {"prefill", "decode", "mixed"};
  return names[static_cast<int>(phase)];
}

// What a piece of the forward pass, and so a collective, is for.
enum class Site : uint8_t { other, embedding, attention, mlp, experts, head, pipeline, token_ids };
constexpr std::string_view site_name(Site site) {
  constexpr std::string_view names[] = {
      "other", "embedding", "attention", "mlp", "experts", "head", "pipeline", "token_ids"};
  return names[static_cast<int>(site)];
}

struct Scope {
  Phase phase = Phase::prefill;
  Site site = Site::other;
  int32_t repeat = 0;
  int32_t step = -1;  // within the repeat; -1 outside steps
  int32_t microbatch = -1;
  int32_t layer = -1;      // -1: embedding, head, sampling
  int32_t ring_step = -1;  // of ring attention; -1 elsewhere
  // The rows are those of another cp rank too (decoding): they count there for MFU.
  bool copy = false;
};

struct OpEvent {
  Scope scope;
  OpRecord op;
};
struct CommEvent {
  Scope scope;
  CommRecord comm;
};
// One pass through a layer's router on this rank. Ranks that route copies of another rank's tokens
// (tp, and cp for decoding tokens) leave tokens_per_expert empty.
struct ExpertEvent {
  Scope scope;
  int64_t n_tokens = 0;                    // routed in the pass, by this rank
  std::vector<int32_t> tokens_per_expert;  // [n_experts]
  std::vector<int64_t> sent_bytes;         // [ep], to each rank of its expert group, its own
                                           // included; dispatch and combine; empty: none sent
};
// A step on this rank. Steps tile a repeat: a step lasts until the next one's plan arrives (the
// last: until the repeat ends), the first begins with the repeat, so that nothing falls between.
// This rank had no plan to work on in [begin_ns, plan_ns) (only the first step) and [work_end_ns,
// end_ns).
struct StepEvent {
  Phase phase = Phase::prefill;
  int32_t repeat = 0;
  int32_t step = 0;
  int64_t begin_ns = 0;
  int64_t plan_ns = 0;
  int64_t work_end_ns = 0;
  int64_t end_ns = 0;
};

// Plain, serialisable; stamps are this rank's host clock, clock_offset_ns is added to bring them to
// rank 0's.
struct RankTimeline {
  int32_t rank = 0;
  Coordinates coordinates;
  std::string host;
  int64_t clock_offset_ns = 0;
  int64_t clock_error_ns = 0;  // bound of the offset's error; 0 on rank 0's host
  int64_t stamp_error_ns = 0;  // of the device's stamps against the host's clock
  std::vector<StepEvent> steps;
  std::vector<OpEvent> ops;
  std::vector<CommEvent> comms;
  std::vector<ExpertEvent> experts;
};
Bytes serialise(const RankTimeline& timeline);
RankTimeline parse_timeline(const Bytes& bytes);

// Ops whose rows are not simply those of the microbatch: attention over this rank's part of the
// cache, and experts on rows of others. They know which are copies.
constexpr bool counts_its_own(OpKind kind) {
  return kind == OpKind::attention || kind == OpKind::expert_linear;
}

class Timeline final : public CostSink, public CommSink {
 public:
  void on_op(const OpRecord& record) override {
    data_.ops.push_back({scope_, record});
    if (scope_.copy && !counts_its_own(record.kind)) data_.ops.back().op.cost.model_flops = 0;
  }
  void on_comm(const CommRecord& record) override { data_.comms.push_back({scope_, record}); }
  void on_step(const StepEvent& step) { data_.steps.push_back(step); }
  void on_experts(ExpertEvent event) {
    event.scope = scope_;
    data_.experts.push_back(std::move(event));
  }
  // Replaces all stamps by the times they stand for (Device::stamp_ns).
  void resolve(const std::function<int64_t(int64_t)>& time_of);
  Scope& scope() { return scope_; }
  RankTimeline& data() { return data_; }

 private:
  Scope scope_;
  RankTimeline data_;
};

}  // namespace testbed
