// The passes of a run: warm-up, the timed repeats with nothing inside the step, and the breakdown
// repeats with every op and collective stamped. The memory peak is read in between, so that noise
// hits both alike.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/commands/session.hpp"
#include "runtime/measure/analysis.hpp"

namespace testbed {

struct PassResults {
  std::vector<RankTimeline> timelines;                  // [world_size] on rank 0
  std::vector<GenerationTiming> timed;                  // [repeats] on rank 0: all replicas
  std::vector<RankPeaks> peaks;                         // [world_size] on rank 0
  std::vector<std::optional<DeviceCounters>> counters;  // [world_size] on rank 0: timed repeats
  std::vector<std::vector<int32_t>> generated;          // [request of the job] on rank 0
  GenerationResult last;                                // of this replica, on its scheduling rank
  bool repeats_agree = true;                            // every repeat gave the same ids; on rank 0
};

// The first rank whose residual stream is not, in every bit, that of a rank which holds the same
// rows: those of its tp group, and when decoding of its cp group. hashes: [world_size].
std::optional<std::string> why_bits_differ(const Mesh& mesh,
                                           const std::vector<ResidualHash>& hashes);

// All ranks call it. stream: called on rank 0 for the tokens of its first generation.
PassResults run_passes(const RankContext& context,
                       Session& session,
                       const std::function<void(size_t, int32_t)>& stream);

}  // namespace testbed
