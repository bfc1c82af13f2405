// Makes the RunRecord: headlines from the timed pass, and where the time went from the timelines of
// the breakdown pass. Pure: no clock, no MPI. docs/metrics.md defines every figure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/nccl_log.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

// Stamps of one clock per replica: that of its first rank, which schedules it.
struct RequestTiming {
  int32_t request = 0;     // index in RunDescription::requests
  int64_t arrival_ns = 0;  // start of the generation
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;
  int64_t n_generated = 0;
};
struct StepTiming {
  int32_t dp = 0;  // the replica, as seen by its first rank
  Phase phase = Phase::prefill;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t n_prompt_tokens = 0;  // prompt tokens the step computed
  int64_t n_new_tokens = 0;     // tokens it sampled
};
// One repeat of the timed pass: every request and every step of every replica.
struct GenerationTiming {
  std::vector<RequestTiming> requests;
  std::vector<StepTiming> steps;
};

// The roof of one rank. All ranks measure the read loop at the same time, several times,
// interleaved with the repeats; so the ranks have equally many samples.
struct RankPeaks {
  std::string memory_domain = {};  // what it shares with other ranks; "" stands for its host
  std::vector<double> read_bytes_per_s = {};  // at least one
  double peak_flops = 0.0;                    // dense FLOP/s of the compute dtype
  int64_t llc_bytes = 0;  // last-level cache of the memory domain, all of it; 0: not known
};

struct AnalysisInput {
  RunDescription run;
  Mesh mesh;
  std::vector<RankTimeline> timelines;  // [world_size], by rank: all breakdown repeats
  std::vector<GenerationTiming> timed;  // [repeats]
  std::vector<RankPeaks> peaks;         // [world_size], by rank
  std::map<Axis, std::string> transports;
  std::map<Axis, std::string> host_transports;  // of communicators of host tensors
  // How NCCL sent what a rank says of an operation; empty: not known of any.
  std::function<NcclProtocol(const CommRecord&)> protocol_of = {};
  // [world_size], by rank: of the timed repeats; empty, or nullopt for devices that have none.
  std::vector<std::optional<DeviceCounters>> counters = {};
};

// Throws Error if a figure cannot be right: timelines that do not match, events of one rank that
// overlap, an MFU above 100 %.
RunRecord analyse(const AnalysisInput& input);

// The sentence that names the wall, from the decode phase if there is one.
std::string wall_sentence(const RunRecord& record);

}  // namespace testbed
