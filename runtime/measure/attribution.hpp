// Attribution: each nanosecond of a rank's timeline to one of the seven parts. Collectives and
// messages are matched over all ranks first, since what one rank waited for is in another's stamps.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/mesh.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

enum class Part : uint8_t { weights, kv, compute, interconnect, wait, bubble, overhead };
inline constexpr int n_parts = 7;
constexpr std::string_view part_name(Part part) {
  constexpr std::string_view names[] = {
      "weights", "kv", "compute", "interconnect", "wait", "bubble", "overhead"};
  return names[static_cast<int>(part)];
}

// One collective of one group, or one message: the members are its records.
struct CommCall {
  struct Member {
    int32_t rank = 0;        // world
    int32_t event = 0;       // index in that rank's comms
    int64_t arrival_ns = 0;  // on rank 0's clock
  };
  std::vector<Member> members;  // by rank in the group; a message: sender, receiver
};

// What the others' stamps say about one record, on the clock of its own rank.
struct CommTiming {
  int64_t ready_ns = 0;  // the last rank of a collective, or the other side of a message, arrived
  bool unresolved = false;  // ready_ns is nearer than the clocks' error: nothing is counted as wait
};

struct MatchedComms {
  std::vector<CommCall> calls;
  std::vector<std::vector<CommTiming>> timings;  // [rank][event]
};
// Throws Error if a record lacks its counterparts.
MatchedComms match_comms(std::span<const RankTimeline> timelines, const Mesh& mesh);

// The bound of the difference of two ranks' clocks; 0 on one host.
int64_t clock_error_ns(const RankTimeline& a, const RankTimeline& b);

struct Roof {
  double read_bytes_per_s = 0.0;
  double peak_flops = 0.0;
};

// [begin_ns, end_ns) on the rank's clock. Exactly one of op, comm is an index, or neither: waiting
// for the plan.
struct TimePiece {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  Part part = Part::overhead;
  int32_t op = -1;
  int32_t comm = -1;
};

// The pieces of the collectives alone, in order of time.
std::vector<TimePiece> comm_pieces(const RankTimeline& timeline,
                                   std::span<const CommTiming> timings);
// Throws Error if a piece begins before the one before it ended.
void check_order(const RankTimeline& timeline, std::span<const TimePiece> pieces);

// In order of time, without overlap; what no piece covers is overhead.
// - an op: up to max(bytes/bandwidth, FLOPs/peak) it is the larger term, the rest is overhead.
//   Bytes are weights and cached keys and values read, and memory is split by them; the time of
//   activations and cache writes is overhead, and so is all of an op that moves nothing else (a
//   norm).
// - a collective, send or receive: until the last rank, or the other side, arrived it is wait, and
//   bubble on the pp axis (a stage without work); then interconnect. A group of one: overhead.
// - where the rank had no plan to work on (StepEvent) and no event covers it: overhead on the rank
//   that schedules its replica, bubble elsewhere in a pipeline, else wait.
// Throws Error if events overlap by more than RankTimeline::stamp_error_ns.
std::vector<TimePiece> attribute(const RankTimeline& timeline,
                                 std::span<const CommTiming> timings,
                                 const Roof& roof,
                                 bool pipelined);

// A step of one rank: parts sum to end - begin exactly.
struct StepParts {
  Phase phase = Phase::prefill;
  int32_t repeat = 0;
  int64_t window_ns = 0;
  int64_t part_ns[n_parts] = {};
  int64_t pp_interconnect_ns = 0;  // within interconnect: of the pp axis
};
std::vector<StepParts> step_parts(const RankTimeline& timeline, std::span<const TimePiece> pieces);

}  // namespace testbed
