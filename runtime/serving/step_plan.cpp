#include "runtime/serving/step_plan.hpp"

#include <algorithm>

#include "kernels/base/byte_stream.hpp"

namespace testbed {

std::vector<PositionRun> rows_on_cp_rank(const PlanSequence& sequence,
                                         int64_t block_size,
                                         int cp_rank) {
  if (!sequence.split) return {{sequence.first_position, sequence.n_rows}};
  std::vector<PositionRun> runs;
  const int64_t end = sequence.first_position + sequence.n_rows;
  for (int64_t first = sequence.first_position; first < end;) {
    const int64_t block = first / block_size;
    const int64_t next = std::min(end, (block + 1) * block_size);
    if (sequence.owner(block) == cp_rank) {
      if (!runs.empty() && runs.back().end() == first) {
        runs.back().n += next - first;
      } else {
        runs.push_back({first, next - first});
      }
    }
    first = next;
  }
  return runs;
}

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
      out.put(sequence.owners);
      out.put(sequence.split);
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
      in.get(sequence.owners);
      in.get(sequence.split);
    }
  }
  CHECK(in.at_end());
  return plan;
}

}  // namespace testbed
