#include "runtime/serving/lockstep.hpp"

#include <algorithm>

#include "kernels/base/byte_stream.hpp"

namespace testbed {
namespace {

// The step that satisfies both.
StepShape joined(StepShape a, StepShape b) {
  if (a.phase == b.phase) return {a.phase, std::max(a.n_microbatches, b.n_microbatches)};
  return a.phase == Phase::prefill ? a : b;
}

Bytes pack(const std::optional<StepShape>& shape) {
  ByteWriter out;
  out.put(shape.value_or(StepShape{.n_microbatches = 0}));
  return out.take();
}

std::optional<StepShape> unpack(const Bytes& bytes) {
  StepShape shape;
  ByteReader(bytes).get(shape);
  if (shape.n_microbatches == 0) return std::nullopt;
  return shape;
}

}  // namespace

std::optional<StepPlan> next_in_lockstep(ControlChannel& control,
                                         const std::vector<int>& replicas,
                                         Scheduler& scheduler) {
  const std::optional<StepShape> mine = scheduler.next_shape();
  for (const int rank : replicas) {
    if (rank != control.rank()) control.post(pack(mine), rank);
  }
  std::optional<StepShape> agreed = mine;
  for (const int rank : replicas) {
    if (rank == control.rank()) continue;
    const std::optional<StepShape> theirs = unpack(control.receive(rank));
    if (theirs) agreed = agreed ? joined(*agreed, *theirs) : *theirs;
  }
  if (!agreed) return std::nullopt;
  if (!mine || mine->phase != agreed->phase) return scheduler.idle_step(*agreed);
  std::optional<StepPlan> plan = scheduler.next();
  plan->microbatches.resize(static_cast<size_t>(agreed->n_microbatches));
  return plan;
}

}  // namespace testbed
