// What a forward pass needs besides weights: the device, the groups this rank belongs to, the KV
// cache, and the microbatch at hand with what follows from its plan.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/workspace.hpp"
#include "parallel/comm/communicator.hpp"
#include "runtime/measure/timeline.hpp"
#include "runtime/serving/kv_cache.hpp"
#include "runtime/serving/step_plan.hpp"

namespace testbed {

// The communicators of one rank.
struct Groups {
  Communicator& tp;
  Communicator& pp;         // activations, stage to stage
  Communicator& pp_tokens;  // sampled ids, last stage to first
};

// Positions, cache slots and attention descriptors of a microbatch, derived from its plan once.
struct MicrobatchRows {
  MicrobatchRows(const MicrobatchPlan& plan, size_t n_kv_groups, int64_t block_size);
  std::vector<int64_t> positions;           // [n_rows]
  std::vector<std::vector<int64_t>> slots;  // [KV group][n_rows]
  std::vector<std::vector<AttentionSequence>>
      sequences;  // [KV group]; borrow the plan's block tables
  int64_t n_rows() const { return static_cast<int64_t>(positions.size()); }
};

struct StepContext {
  Device& device;
  Groups& groups;
  Workspace& workspace;
  const KvCache& kv;
  const MicrobatchRows& rows;
  Timeline* timeline;  // nullptr in a timed pass
};

// The next piece of the model begins: messages to other stages move on, and the timeline is told
// its name.
inline void enter(StepContext& context, int64_t layer, Site site) {
  if (context.groups.pp.size() > 1) context.groups.pp.progress();
  if (context.timeline == nullptr) return;
  context.timeline->scope().layer = static_cast<int32_t>(layer);
  context.timeline->scope().site = site;
}

}  // namespace testbed
