#include "runtime/measure/attribution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/errors.hpp"

namespace testbed {

namespace {

void add_piece(std::vector<TimePiece>& pieces, TimePiece piece, int64_t end_ns, Part part) {
  piece.end_ns = end_ns;
  piece.part = part;
  if (piece.end_ns > piece.begin_ns) pieces.push_back(piece);
}

void add_op(std::vector<TimePiece>& pieces, const OpRecord& op, int32_t index, const Roof& roof) {
  const OpCost& cost = op.cost;
  // Activations and cache writes are neither weights nor KV reads: their time is overhead.
  const int64_t model_bytes = cost.weight_bytes + cost.kv_bytes;
  const double memory_s = static_cast<double>(model_bytes) / roof.read_bytes_per_s;
  const double compute_s = static_cast<double>(cost.flops) / roof.peak_flops;
  const int64_t bound_ns = std::llround(std::max(memory_s, compute_s) * 1e9);
  const int64_t useful_ns = std::min(op.end_ns - op.begin_ns, bound_ns);

  TimePiece piece{.begin_ns = op.begin_ns, .op = index};
  int64_t at_ns = op.begin_ns;
  if (compute_s >= memory_s) {
    at_ns += useful_ns;
    add_piece(pieces, piece, at_ns, Part::compute);
  } else if (model_bytes > 0) {
    const int64_t weights_ns =
        std::llround(static_cast<double>(useful_ns) * static_cast<double>(cost.weight_bytes) /
                     static_cast<double>(model_bytes));
    add_piece(pieces, piece, at_ns + weights_ns, Part::weights);
    piece.begin_ns = at_ns + weights_ns;
    at_ns += useful_ns;
    add_piece(pieces, piece, at_ns, Part::kv);
  }
  piece.begin_ns = at_ns;
  add_piece(pieces, piece, op.end_ns, Part::overhead);
}

void add_blocked(std::vector<TimePiece>& pieces,
                 int64_t begin_ns,
                 int64_t end_ns,
                 int64_t ready_ns,
                 Part before,
                 int32_t index) {
  TimePiece piece{.begin_ns = begin_ns, .comm = index};
  const int64_t split_ns = std::clamp(ready_ns, begin_ns, end_ns);
  add_piece(pieces, piece, split_ns, before);
  piece.begin_ns = split_ns;
  add_piece(pieces, piece, end_ns, Part::interconnect);
}

void add_comm(std::vector<TimePiece>& pieces,
              const CommRecord& comm,
              const CommTiming& timing,
              int32_t index) {
  if (comm.group_size == 1) {
    TimePiece piece{.begin_ns = comm.post_begin_ns, .comm = index};
    add_piece(pieces, piece, comm.post_end_ns, Part::overhead);
    return;
  }
  const Part before = comm.axis == Axis::pp ? Part::bubble : Part::wait;
  add_blocked(pieces, comm.post_begin_ns, comm.post_end_ns, timing.ready_ns, before, index);
  add_blocked(pieces, comm.wait_begin_ns, comm.wait_end_ns, timing.ready_ns, before, index);
}

[[noreturn]] void refuse(const RankTimeline& timeline, const char* what, int64_t at_ns) {
  throw Error(ExitCode::internal_error,
              fmt::format("timeline of rank {}: {} at {} ns", timeline.rank, what, at_ns));
}

void check_stamps(const RankTimeline& timeline) {
  for (const OpEvent& event : timeline.ops) {
    if (event.op.end_ns < event.op.begin_ns) {
      refuse(timeline, "an op ends before it begins", event.op.begin_ns);
    }
  }
  for (const CommEvent& event : timeline.comms) {
    const CommRecord& c = event.comm;
    if (c.post_end_ns < c.post_begin_ns || c.wait_begin_ns < c.post_end_ns ||
        c.wait_end_ns < c.wait_begin_ns) {
      refuse(timeline, "a collective's stamps are out of order", c.post_begin_ns);
    }
  }
  int64_t last_ns = INT64_MIN;
  for (const StepEvent& step : timeline.steps) {
    if (step.begin_ns < last_ns || step.plan_ns < step.begin_ns ||
        step.work_end_ns < step.plan_ns || step.end_ns < step.work_end_ns) {
      refuse(timeline, "a step's stamps are out of order", step.begin_ns);
    }
    last_ns = step.end_ns;
  }
}

// What no piece covers of the times without a plan.
std::vector<TimePiece> plan_waits(const RankTimeline& timeline,
                                  std::span<const TimePiece> pieces,
                                  Part part) {
  std::vector<TimePiece> waits;
  size_t next = 0;
  const auto add_gaps = [&](int64_t at_ns, int64_t end_ns) {
    while (next < pieces.size() && pieces[next].end_ns <= at_ns) ++next;
    for (size_t i = next; i < pieces.size() && pieces[i].begin_ns < end_ns; ++i) {
      add_piece(waits, {.begin_ns = at_ns}, pieces[i].begin_ns, part);
      at_ns = std::max(at_ns, pieces[i].end_ns);
    }
    add_piece(waits, {.begin_ns = at_ns}, end_ns, part);
  };
  for (const StepEvent& step : timeline.steps) {
    add_gaps(step.begin_ns, step.plan_ns);
    add_gaps(step.work_end_ns, step.end_ns);
  }
  return waits;
}

// The first rank of a replica makes the plans: what it does without one is scheduling.
Part part_without_plan(const Coordinates& c, bool pipelined) {
  if (c.tp == 0 && c.cp == 0 && c.pp == 0) return Part::overhead;
  return pipelined ? Part::bubble : Part::wait;
}

// A host's stamps and a device's are of two clocks: where they say that one piece began before the
// one before it ended, by less than they are known, it began then.
void settle_overlaps(std::vector<TimePiece>& pieces, int64_t stamp_error_ns) {
  for (size_t i = 1; i < pieces.size(); ++i) {
    const int64_t overlap_ns = pieces[i - 1].end_ns - pieces[i].begin_ns;
    if (overlap_ns <= 0 || overlap_ns > stamp_error_ns) continue;
    pieces[i].begin_ns += overlap_ns;
    pieces[i].end_ns = std::max(pieces[i].end_ns, pieces[i].begin_ns);
  }
  std::erase_if(pieces, [](const TimePiece& piece) { return piece.begin_ns == piece.end_ns; });
}

bool earlier(const TimePiece& a, const TimePiece& b) { return a.begin_ns < b.begin_ns; }

// The pieces up to `sorted` are in order; those after it were stamped one after the other, so that
// they mostly are.
void merge_by_time(std::vector<TimePiece>& pieces, size_t sorted) {
  const auto middle = pieces.begin() + static_cast<std::ptrdiff_t>(sorted);
  if (!std::is_sorted(middle, pieces.end(), earlier)) std::sort(middle, pieces.end(), earlier);
  std::inplace_merge(pieces.begin(), middle, pieces.end(), earlier);
}

}  // namespace

void check_order(const RankTimeline& timeline, std::span<const TimePiece> pieces) {
  for (size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i].begin_ns < pieces[i - 1].end_ns) {
      refuse(timeline, "two events overlap", pieces[i].begin_ns);
    }
  }
}

std::vector<TimePiece> comm_pieces(const RankTimeline& timeline,
                                   std::span<const CommTiming> timings) {
  std::vector<TimePiece> pieces;
  pieces.reserve(2 * timeline.comms.size());
  for (size_t i = 0; i < timeline.comms.size(); ++i) {
    add_comm(pieces, timeline.comms[i].comm, timings[i], static_cast<int32_t>(i));
  }
  merge_by_time(pieces, 0);
  return pieces;
}

std::vector<TimePiece> attribute(const RankTimeline& timeline,
                                 std::span<const CommTiming> timings,
                                 const Roof& roof,
                                 bool pipelined) {
  check_stamps(timeline);
  std::vector<TimePiece> pieces = comm_pieces(timeline, timings);
  const size_t n_comms = pieces.size();
  for (size_t i = 0; i < timeline.ops.size(); ++i) {
    add_op(pieces, timeline.ops[i].op, static_cast<int32_t>(i), roof);
  }
  merge_by_time(pieces, n_comms);
  settle_overlaps(pieces, timeline.stamp_error_ns);
  check_order(timeline, pieces);
  const size_t n_busy = pieces.size();
  const std::vector<TimePiece> waits =
      plan_waits(timeline, pieces, part_without_plan(timeline.coordinates, pipelined));
  pieces.insert(pieces.end(), waits.begin(), waits.end());
  merge_by_time(pieces, n_busy);
  return pieces;
}

std::vector<StepParts> step_parts(const RankTimeline& timeline, std::span<const TimePiece> pieces) {
  std::vector<StepParts> steps;
  steps.reserve(timeline.steps.size());
  size_t next = 0;
  for (const StepEvent& step : timeline.steps) {
    StepParts parts{
        .phase = step.phase, .repeat = step.repeat, .window_ns = step.end_ns - step.begin_ns};
    int64_t covered_ns = 0;
    while (next < pieces.size() && pieces[next].end_ns <= step.begin_ns) ++next;
    for (size_t i = next; i < pieces.size() && pieces[i].begin_ns < step.end_ns; ++i) {
      const TimePiece& piece = pieces[i];
      const int64_t ns =
          std::min(piece.end_ns, step.end_ns) - std::max(piece.begin_ns, step.begin_ns);
      covered_ns += ns;
      parts.part_ns[static_cast<int>(piece.part)] += ns;
      if (piece.part == Part::interconnect &&
          timeline.comms[static_cast<size_t>(piece.comm)].comm.axis == Axis::pp) {
        parts.pp_interconnect_ns += ns;
      }
    }
    parts.part_ns[static_cast<int>(Part::overhead)] += parts.window_ns - covered_ns;
    steps.push_back(parts);
  }
  return steps;
}

}  // namespace testbed
