// match_comms: finds the records of one collective, or the two ends of one message, on all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/base/errors.hpp"
#include "runtime/measure/attribution.hpp"

namespace testbed {

namespace {

// Op (send for both ends of a message), axis, host, group or source, target (-1 for a collective),
// sequence, payload. Simulated hidden states and sampled ids travel on two communicators of one
// axis, each with its own sequence: the payload parts them. Of an all-to-all each rank sends
// another payload.
using Key = std::tuple<CommOp, Axis, bool, int64_t, int64_t, int64_t, int64_t>;
constexpr int64_t any_payload = -1;

bool is_message(CommOp op) { return op == CommOp::send || op == CommOp::recv; }

int world_rank(const Mesh& mesh, const CommRecord& record, int rank_in_group) {
  const std::vector<int> ranks = mesh.group(static_cast<int>(record.group_id), record.axis);
  return ranks.at(static_cast<size_t>(rank_in_group));
}

Key key_of(const Mesh& mesh, int rank, const CommRecord& record) {
  if (!is_message(record.op)) {
    const int64_t payload = record.op == CommOp::all_to_all ? any_payload : record.payload_bytes;
    return {record.op, record.axis, record.host, record.group_id, -1, record.sequence, payload};
  }
  const int peer = world_rank(mesh, record, record.peer);
  const bool sends = record.op == CommOp::send;
  return {CommOp::send,
          record.axis,
          record.host,
          sends ? rank : peer,
          sends ? peer : rank,
          record.sequence,
          record.payload_bytes};
}

void check_complete(std::span<const RankTimeline> timelines, const CommCall& call) {
  const CommCall::Member& first = call.members.front();
  const CommRecord& record =
      timelines[static_cast<size_t>(first.rank)].comms[static_cast<size_t>(first.event)].comm;
  const size_t expected = is_message(record.op) ? 2 : static_cast<size_t>(record.group_size);
  if (call.members.size() == expected) return;
  throw Error(ExitCode::internal_error,
              fmt::format("timelines do not match: {} {} on axis {} of group {} was recorded by {} "
                          "ranks instead of {} (rank {} among them)",
                          comm_op_name(record.op),
                          record.sequence,
                          axis_name(record.axis),
                          record.group_id,
                          call.members.size(),
                          expected,
                          first.rank));
}

// ready = when the last of the others arrived; an own arrival that is later leaves no wait.
CommTiming timing_of(std::span<const RankTimeline> timelines,
                     const CommCall& call,
                     const CommCall::Member& mine) {
  const RankTimeline& own = timelines[static_cast<size_t>(mine.rank)];
  const CommCall::Member* last = &mine;
  for (const CommCall::Member& member : call.members) {
    if (member.arrival_ns > last->arrival_ns) last = &member;
  }
  if (last == &mine) return {.ready_ns = mine.arrival_ns - own.clock_offset_ns};
  const int64_t error_ns = clock_error_ns(own, timelines[static_cast<size_t>(last->rank)]);
  const int64_t late_ns = last->arrival_ns - mine.arrival_ns;
  if (late_ns < error_ns) {
    return {.ready_ns = mine.arrival_ns - own.clock_offset_ns, .unresolved = true};
  }
  return {.ready_ns = last->arrival_ns - own.clock_offset_ns, .unresolved = false};
}

}  // namespace

int64_t clock_error_ns(const RankTimeline& a, const RankTimeline& b) {
  const int64_t of_hosts = a.host == b.host ? 0 : a.clock_error_ns + b.clock_error_ns;
  return of_hosts + a.stamp_error_ns + b.stamp_error_ns;
}

MatchedComms match_comms(std::span<const RankTimeline> timelines, const Mesh& mesh) {
  std::map<Key, CommCall> calls;
  MatchedComms matched;
  for (const RankTimeline& timeline : timelines) {
    matched.timings.emplace_back(timeline.comms.size());
    for (size_t i = 0; i < timeline.comms.size(); ++i) {
      const CommEvent& event = timeline.comms[i];
      CommCall& call = calls[key_of(mesh, timeline.rank, event.comm)];
      const CommCall::Member member{timeline.rank,
                                    static_cast<int32_t>(i),
                                    event.comm.post_begin_ns + timeline.clock_offset_ns};
      // A message's sender comes first, whatever its rank.
      call.members.insert(event.comm.op == CommOp::send ? call.members.begin() : call.members.end(),
                          member);
    }
  }
  for (auto& [key, call] : calls) {
    check_complete(timelines, call);
    for (const CommCall::Member& member : call.members) {
      matched.timings[static_cast<size_t>(member.rank)][static_cast<size_t>(member.event)] =
          timing_of(timelines, call, member);
    }
    matched.calls.push_back(std::move(call));
  }
  return matched;
}

}  // namespace testbed
