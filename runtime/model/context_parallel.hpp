// How a layer's attention meets the cp group, told to the timeline.
#pragma once

#include "parallel/ring_attention.hpp"
#include "runtime/model/step_context.hpp"

namespace testbed {

inline size_t kv_group(const StepContext& context, int64_t kv_layer) {
  return static_cast<size_t>(context.kv.group_of(kv_layer));
}

// Around the ring, or merged: as the microbatch is placed.
inline void attend_over_cp(StepContext& context,
                           int64_t kv_layer,
                           const PartialAttention& attend,
                           const AttentionResult& result) {
  const size_t group = kv_group(context, kv_layer);
  const KvView cache = context.kv.view(kv_layer);
  ContextParallelAttention cp(
      context.device, context.groups.cp, context.workspace, [&context](int step) {
        if (context.timeline != nullptr) context.timeline->scope().ring_step = step;
      });
  if (context.rows.cp_use == CpUse::ring) {
    cp.ring(context.rows.rings[group], cache, attend, result);
  } else {
    cp.merge(cache, context.rows.sequences[group], attend, result);
  }
}

}  // namespace testbed
