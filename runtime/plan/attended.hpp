// Attention of a step as StepRows places it: at once, around the cp ring, or merged over cp.
#pragma once

#include <functional>

#include "kernels/base/kv.hpp"
#include "runtime/plan/step_parts.hpp"

namespace testbed::plan {

// What attention is over, and what comes out per row.
struct AttendedShape {
  int64_t window = 0;
  KvShape kv;  // what is cached, and travels around the ring
  int64_t n_heads = 0;
  int64_t v_dim = 0;
  bool sinks = false;
};

// Of all sequences that the part stands for.
OpCost part_cost(
    const AttendedPart& part, int64_t window, int64_t n_heads, const KvShape& kv, bool is_partial);

// attend(part, is_partial): the ops over one part.
void add_attended(const StepParts& step,
                  const AttendedShape& shape,
                  const std::function<void(const AttendedPart&, bool)>& attend);

}  // namespace testbed::plan
