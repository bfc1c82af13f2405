// ring_of: how much of ring attention's transfers ran under computation. docs/metrics.md, "Ring
// attention", states the formulas.
#include <algorithm>

#include "runtime/measure/breakdown.hpp"

namespace testbed {

namespace {

struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// One device's part of a ring step, over all repeats, layers and microbatches.
struct RingSum {
  int64_t compute_ns = 0;
  int64_t exposed_ns = 0;
  int64_t wait_ns = 0;
  int64_t sent_bytes = 0;
  std::vector<Interval> receiving;  // both ends there, message not
  bool is_bound = false;
};

bool in_ring(const Scope& scope, Phase phase) {
  return in_phase(scope, phase) && scope.ring_step >= 0;
}

bool is_ring_message(const CommEvent& event, Phase phase) {
  return in_ring(event.scope, phase) &&
         (event.comm.op == CommOp::send || event.comm.op == CommOp::recv);
}

// Over shared memory a core copies, inside the calls that the ranks make: nothing moves while they
// compute.
bool copied_by_cores(const Breakdown& breakdown) {
  const auto transport = breakdown.input.transports.find(Axis::cp);
  return transport != breakdown.input.transports.end() && transport->second == "shm";
}

// A message belongs to the ring step in which it is waited for: its scope is that of then.
void add_message(const CommRecord& record, int64_t ready_ns, bool by_cores, RingSum& sum) {
  if (record.op == CommOp::send) {
    sum.sent_bytes += record.payload_bytes;
    return;
  }
  const bool arrival_known = record.arrived_ns != 0;
  if (!arrival_known && by_cores) return;
  const int64_t end_ns =
      arrival_known ? std::min(record.arrived_ns, record.wait_end_ns) : record.wait_end_ns;
  sum.receiving.push_back({ready_ns, end_ns});
  // A receiver that was waiting when the message was sent saw it arrive.
  if (!arrival_known && ready_ns < record.wait_begin_ns) sum.is_bound = true;
}

std::vector<RingSum> sums_of(const Breakdown& breakdown, int rank, Phase phase) {
  std::vector<RingSum> sums(static_cast<size_t>(breakdown.input.mesh.cp));
  const RankTimeline& timeline = breakdown.timeline(rank);
  const RankBreakdown& parts = breakdown.rank(rank);
  const auto& timings = breakdown.comms.timings[static_cast<size_t>(rank)];
  const bool by_cores = copied_by_cores(breakdown);
  for (const OpEvent& event : timeline.ops) {
    if (!in_ring(event.scope, phase)) continue;
    sums.at(static_cast<size_t>(event.scope.ring_step)).compute_ns +=
        event.op.end_ns - event.op.begin_ns;
  }
  for (size_t i = 0; i < timeline.comms.size(); ++i) {
    const CommEvent& event = timeline.comms[i];
    if (!is_ring_message(event, phase)) continue;
    RingSum& sum = sums.at(static_cast<size_t>(event.scope.ring_step));
    sum.exposed_ns += parts.comm_wire_ns[i];
    sum.wait_ns += parts.comm_blocked_ns[i];
    add_message(event.comm, timings[i].ready_ns, by_cores, sum);
  }
  return sums;
}

// Of [begin, end), what the rank was blocked in messages and collectives.
int64_t blocked_ns(std::span<const TimePiece> pieces, const Interval& of) {
  int64_t total_ns = 0;
  auto piece = std::partition_point(
      pieces.begin(), pieces.end(), [&](const TimePiece& p) { return p.end_ns <= of.begin_ns; });
  for (; piece != pieces.end() && piece->begin_ns < of.end_ns; ++piece) {
    if (piece->comm < 0) continue;
    total_ns += std::min(piece->end_ns, of.end_ns) - std::max(piece->begin_ns, of.begin_ns);
  }
  return total_ns;
}

// Time in which something was on its way and the rank was not blocked.
int64_t hidden_ns(std::span<const TimePiece> pieces, std::vector<Interval> receiving) {
  std::sort(receiving.begin(), receiving.end(), [](const Interval& a, const Interval& b) {
    return a.begin_ns < b.begin_ns;
  });
  int64_t total_ns = 0;
  int64_t counted_ns = INT64_MIN;  // until here
  for (const Interval& interval : receiving) {
    const Interval fresh{std::max(interval.begin_ns, counted_ns), interval.end_ns};
    if (fresh.end_ns <= fresh.begin_ns) continue;
    total_ns += fresh.end_ns - fresh.begin_ns - blocked_ns(pieces, fresh);
    counted_ns = fresh.end_ns;
  }
  return total_ns;
}

}  // namespace

std::vector<RingStepRecord> ring_of(const Breakdown& breakdown, Phase phase) {
  std::vector<RingStepRecord> ring(static_cast<size_t>(breakdown.input.mesh.cp));
  bool occurs = false;
  int64_t n_steps = 0;
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    for (const OpEvent& event : breakdown.timeline(rank).ops) {
      occurs = occurs || in_ring(event.scope, phase);
    }
    n_steps += breakdown.n_steps(rank, phase);
  }
  if (!occurs) return {};
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    const std::vector<RingSum> sums = sums_of(breakdown, rank, phase);
    for (size_t s = 0; s < sums.size(); ++s) {
      RingStepRecord& step = ring[s];
      step.compute_ms += ns_to_ms(sums[s].compute_ns);
      step.exposed_ms += ns_to_ms(sums[s].exposed_ns);
      step.wait_ms += ns_to_ms(sums[s].wait_ns);
      step.hidden_ms += ns_to_ms(hidden_ns(breakdown.rank(rank).pieces, sums[s].receiving));
      step.sent_bytes = std::max(step.sent_bytes,
                                 per_rounded(sums[s].sent_bytes, breakdown.n_steps(rank, phase)));
      step.transfer_is_bound = step.transfer_is_bound || sums[s].is_bound;
    }
  }
  for (size_t s = 0; s < ring.size(); ++s) {
    RingStepRecord& step = ring[s];
    step.step = static_cast<int>(s);
    step.compute_ms = per(step.compute_ms, n_steps);
    step.exposed_ms = per(step.exposed_ms, n_steps);
    step.wait_ms = per(step.wait_ms, n_steps);
    step.hidden_ms = per(step.hidden_ms, n_steps);
    step.transfer_ms = step.hidden_ms + step.exposed_ms;
  }
  return ring;
}

}  // namespace testbed
