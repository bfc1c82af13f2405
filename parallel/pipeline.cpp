#include "parallel/pipeline.hpp"

#include <algorithm>

#include "kernels/base/check.hpp"

namespace testbed {

std::vector<PipelineSlot> pipeline_schedule(int n_microbatches,
                                            int n_stages,
                                            int n_virtual_stages) {
  CHECK(n_microbatches >= 1 && n_stages >= 1 && n_virtual_stages >= 1);
  std::vector<PipelineSlot> slots;
  for (int group = 0; group < n_microbatches; group += n_stages) {
    const int group_end = std::min(n_microbatches, group + n_stages);
    for (int v = 0; v < n_virtual_stages; ++v) {
      for (int m = group; m < group_end; ++m) slots.push_back({m, v});
    }
  }
  return slots;
}

}  // namespace testbed
