// What a forward pass needs besides weights: the device, the groups this rank belongs to, the KV
// cache, and the microbatch at hand with what follows from its plan.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/named_range.hpp"
#include "kernels/workspace.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/ring_plan.hpp"
#include "runtime/measure/timeline.hpp"
#include "runtime/serving/kv_cache.hpp"
#include "runtime/serving/step_plan.hpp"

namespace testbed {

// The communicators of one rank. Those of tensors on the device, and those of small host tensors:
// the same ones where the device's memory is the host's.
struct Groups {
  Communicator& tp;
  Communicator& cp;
  Communicator& ep;
  Communicator& pp;         // activations, stage to stage
  Communicator& tp_host;    // what each rank's part of the vocabulary offers
  Communicator& ep_host;    // how many tokens come, and their routing
  Communicator& pp_tokens;  // sampled ids, last stage to first
};

// How a microbatch's attention uses the cp group. ring: each rank has some of the rows (a prompt).
// merge: every rank has all rows and a part of the cache (decoding). none: there is one rank, or
// there are no rows.
enum class CpUse : uint8_t { none, ring, merge };

// This rank's rows of a microbatch: positions, cache slots and attention descriptors, derived from
// the plan once.
class MicrobatchRows {
 public:
  MicrobatchRows(const MicrobatchPlan& plan,
                 const std::vector<KvGroup>& kv_groups,
                 int64_t block_size,
                 int cp = 1,
                 int cp_rank = 0);
  MicrobatchRows(const MicrobatchRows&) = delete;
  MicrobatchRows& operator=(const MicrobatchRows&) = delete;

  int64_t n_rows() const { return static_cast<int64_t>(positions.size()); }

  CpUse cp_use = CpUse::none;
  bool are_copies = false;         // the first cp rank has the same rows: they count there
  std::vector<int64_t> positions;  // [n_rows]
  std::vector<int64_t> plan_rows;  // [n_rows] index into the plan's tokens
  std::vector<uint64_t> keys;      // [n_rows] of (request, position): RoutingParams::row_keys
  std::vector<int32_t> requests;   // [n_rows]
  std::vector<std::vector<int64_t>> slots;  // [KV group][n_rows]; -1 = another rank's block
  // [KV group] this rank's rows against its own cache; where cp_use is ring the first step of rings
  // says it.
  std::vector<std::vector<AttentionSequence>> sequences;
  std::vector<RingPlan> rings;  // [KV group]; empty unless cp_use is ring
  // [n logits rows of the plan] this rank's row, or -1: another cp rank has it.
  std::vector<int64_t> logits_rows;

 private:
  void reserve(const MicrobatchPlan& plan);
  void add_rows(const PlanSequence& sequence, const std::vector<PositionRun>& rows);
  void add_slots(const PlanSequence& sequence, int64_t first_row, int64_t block_size, int cp_rank);
  void add_sequence(const PlanSequence& sequence,
                    int64_t first_row,
                    const std::vector<PositionRun>& rows,
                    const std::vector<KvGroup>& kv_groups,
                    int64_t block_size,
                    int cp_rank);
  void plan_rings(const MicrobatchPlan& plan,
                  std::vector<RingSequence>& ring,
                  const std::vector<KvGroup>& kv_groups,
                  int64_t block_size,
                  int cp,
                  int cp_rank);
  void find_logits_rows(const MicrobatchPlan& plan);

  std::deque<std::vector<PositionRun>> runs_;
  std::deque<std::vector<KvBlock>> blocks_;
};

struct StepContext {
  Device& device;
  Groups& groups;
  Workspace& workspace;
  const KvCache& kv;
  const MicrobatchRows& rows;
  Timeline* timeline;  // nullptr in a timed pass
  // Told of every layer's routing of this rank's rows, ids I32 [n_rows, top_k]; may be empty.
  std::function<void(int64_t layer, const Tensor& ids)> on_routed = {};
  // Per-layer embeddings of the rows held (gemma4): [n_held, n_layers, dim], or empty.
  TensorView per_layer_inputs = {};
  NamedRange piece = {};  // the one at hand, for a profiler
  int64_t layer = -1;     // where that is
  Site site = Site::other;
};

// The next piece of the model begins: messages to other stages move on, and a profiler and the
// timeline are told its name.
inline void enter(StepContext& context, int64_t layer, Site site) {
  if (context.groups.pp.size() > 1) context.groups.pp.progress();
  context.piece.next(context.device, site_name(site), layer);
  context.layer = layer;
  context.site = site;
  if (context.timeline == nullptr) return;
  context.timeline->scope().layer = static_cast<int32_t>(layer);
  context.timeline->scope().site = site;
}

}  // namespace testbed
