// Pipeline schedules: in which order a stage works on its (microbatch, virtual stage) slots.
// Arithmetic only.
#pragma once

#include <vector>

namespace testbed {

struct PipelineSlot {
  int microbatch = 0;
  int virtual_stage = 0;
  bool operator==(const PipelineSlot&) const = default;
};

// Forward order of one step, the same on every stage, so that sends and receives pair up. v = 1 is
// GPipe's order. v > 1 interleaves (Narayanan et al. 2021, arXiv:2104.04473): microbatches go in
// groups of n_stages through all virtual stages before the next group starts.
std::vector<PipelineSlot> pipeline_schedule(int n_microbatches, int n_stages, int n_virtual_stages);

}  // namespace testbed
