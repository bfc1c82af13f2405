#include "runtime/serving/step_plan.hpp"

#include "kernels/base/byte_stream.hpp"

namespace testbed {

Bytes serialise(const StepPlan& plan) {
  ByteWriter out;
  out.put(plan.step);
  out.put(plan.phase);
  out.put(static_cast<uint64_t>(plan.microbatches.size()));
  for (const MicrobatchPlan& microbatch : plan.microbatches) {
    out.put(microbatch.tokens);
    out.put(microbatch.logits_rows);
    out.put(static_cast<uint64_t>(microbatch.sequences.size()));
    for (const PlanSequence& sequence : microbatch.sequences) {
      out.put(sequence.request);
      out.put(sequence.first_row);
      out.put(sequence.n_rows);
      out.put(sequence.first_position);
      out.put(static_cast<uint64_t>(sequence.block_tables.size()));
      for (const std::vector<int32_t>& table : sequence.block_tables) out.put(table);
    }
  }
  return out.take();
}

StepPlan parse_step_plan(const Bytes& bytes) {
  ByteReader in(bytes);
  StepPlan plan;
  const auto count = [&in] {
    uint64_t n = 0;
    in.get(n);
    return static_cast<size_t>(n);
  };
  in.get(plan.step);
  in.get(plan.phase);
  plan.microbatches.resize(count());
  for (MicrobatchPlan& microbatch : plan.microbatches) {
    in.get(microbatch.tokens);
    in.get(microbatch.logits_rows);
    microbatch.sequences.resize(count());
    for (PlanSequence& sequence : microbatch.sequences) {
      in.get(sequence.request);
      in.get(sequence.first_row);
      in.get(sequence.n_rows);
      in.get(sequence.first_position);
      sequence.block_tables.resize(count());
      for (std::vector<int32_t>& table : sequence.block_tables) in.get(table);
    }
  }
  CHECK(in.at_end());
  return plan;
}

}  // namespace testbed
