// collectives_of: what each kind of collective moved, and how its time splits into wait and wire.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "runtime/measure/breakdown.hpp"
#include "runtime/measure/bus_factor.hpp"

namespace testbed {

namespace {

using Kind = std::tuple<std::string, Axis, bool, Site, CommAlgorithm>;  // bool: host
using Group = std::pair<int64_t, int64_t>;  // group id, or source and target of messages

struct GroupSum {
  int64_t calls = 0;
  int64_t payload_bytes = 0;
  int64_t n_steps = 0;  // of a member
};

// All calls of one kind, over all repeats.
struct KindSum {
  int n = 1;
  int64_t calls = 0;
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;
  int64_t min_payload = INT64_MAX;
  int64_t max_payload = 0;
  int64_t unresolved = 0;
  std::map<Group, GroupSum> groups;
  std::map<int, int64_t> wire_ns_of_rank;
  std::vector<double> wait_us;
  std::vector<double> wire_us;
  std::vector<double> wire_bound_us;
  std::map<int, std::vector<double>> lateness_us;  // by rank, of the calls it was last in
};

const CommEvent& event_of(const Breakdown& breakdown, const CommCall::Member& member) {
  return breakdown.timeline(member.rank).comms[static_cast<size_t>(member.event)];
}

bool is_message(const CommRecord& record) {
  return record.op == CommOp::send || record.op == CommOp::recv;
}

// The rank that came last, and how long after the one before; nothing if the clocks cannot tell.
void add_latest(const Breakdown& breakdown, const CommCall& call, KindSum& kind) {
  std::vector<CommCall::Member> order = call.members;
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.arrival_ns < b.arrival_ns;
  });
  const CommCall::Member& last = order[order.size() - 1];
  const CommCall::Member& previous = order[order.size() - 2];
  const int64_t late_ns = last.arrival_ns - previous.arrival_ns;
  const int64_t error_ns =
      clock_error_ns(breakdown.timeline(last.rank), breakdown.timeline(previous.rank));
  if (late_ns == 0 || late_ns < error_ns) return;
  kind.lateness_us[last.rank].push_back(ns_to_us(late_ns));
}

// How long a message was under way: from when both sides were there until the receiver had it. Only
// a bound if the receiver was busy when it was sent, unless the transport knows when it arrived.
void add_message_wire(const Breakdown& breakdown, const CommCall& call, KindSum& kind) {
  const CommCall::Member& receiver = call.members.back();
  const CommRecord& record = event_of(breakdown, receiver).comm;
  const int64_t ready_ns =
      breakdown.comms
          .timings[static_cast<size_t>(receiver.rank)][static_cast<size_t>(receiver.event)]
          .ready_ns;
  // Sent before the receiver was there, it may have been under way before.
  const bool sender_came_last = call.members.front().arrival_ns >= receiver.arrival_ns;
  const bool waited_for = ready_ns >= record.wait_begin_ns;
  const bool arrival_known = record.arrived_ns != 0 && sender_came_last;
  const int64_t end_ns =
      arrival_known ? std::min(record.arrived_ns, record.wait_end_ns) : record.wait_end_ns;
  const double us = ns_to_us(std::max<int64_t>(0, end_ns - ready_ns));
  (waited_for || arrival_known ? kind.wire_us : kind.wire_bound_us).push_back(us);
}

// A collective is under way until the last of its ranks leaves.
void add_collective_wire(const Breakdown& breakdown, const CommCall& call, KindSum& kind) {
  int64_t wire_ns = 0;
  for (const CommCall::Member& member : call.members) {
    wire_ns = std::max(wire_ns,
                       breakdown.rank(member.rank).comm_wire_ns[static_cast<size_t>(member.event)]);
  }
  kind.wire_us.push_back(ns_to_us(wire_ns));
}

void add_member(const Breakdown& breakdown, const CommCall::Member& member, KindSum& kind) {
  const auto event = static_cast<size_t>(member.event);
  const RankBreakdown& rank = breakdown.rank(member.rank);
  kind.wire_ns_of_rank[member.rank] += rank.comm_wire_ns[event];
  if (breakdown.comms.timings[static_cast<size_t>(member.rank)][event].unresolved) {
    ++kind.unresolved;
  }
}

// What the call made its most patient rank wait: the last one, who does not wait, is not averaged
// in.
void add_wait(const Breakdown& breakdown, const CommCall& call, KindSum& kind) {
  const CommCall::Member* first = nullptr;
  int64_t longest_ns = 0;
  for (const CommCall::Member& member : call.members) {
    const auto event = static_cast<size_t>(member.event);
    if (event_of(breakdown, member).comm.op == CommOp::send) continue;
    if (first == nullptr || member.arrival_ns < first->arrival_ns) first = &member;
    longest_ns = std::max(longest_ns, breakdown.rank(member.rank).comm_blocked_ns[event]);
  }
  if (first == nullptr) return;  // a message that nobody received
  const auto& timings = breakdown.comms.timings[static_cast<size_t>(first->rank)];
  if (timings[static_cast<size_t>(first->event)].unresolved) return;
  kind.wait_us.push_back(ns_to_us(longest_ns));
}

void add_call(const Breakdown& breakdown, const CommCall& call, Phase phase, KindSum& kind) {
  const CommCall::Member& first = call.members.front();
  const CommRecord& record = event_of(breakdown, first).comm;
  const bool message = is_message(record);
  // Of the busiest: the members of an all-to-all send different amounts.
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;
  int64_t n_steps = 0;
  for (const CommCall::Member& member : call.members) {
    const CommRecord& of_member = event_of(breakdown, member).comm;
    payload_bytes = std::max(payload_bytes, of_member.payload_bytes);
    wire_bytes = std::max(wire_bytes, of_member.wire_bytes);
    n_steps = std::max(n_steps, breakdown.n_steps(member.rank, phase));
    kind.min_payload = std::min(kind.min_payload, of_member.payload_bytes);
    add_member(breakdown, member, kind);
  }
  add_wait(breakdown, call, kind);
  kind.n = message ? 2 : record.group_size;
  ++kind.calls;
  kind.payload_bytes += payload_bytes;
  kind.wire_bytes += wire_bytes;
  kind.max_payload = std::max(kind.max_payload, payload_bytes);
  if (message) {
    add_message_wire(breakdown, call, kind);
  } else {
    add_collective_wire(breakdown, call, kind);
    if (call.members.size() > 1) add_latest(breakdown, call, kind);
  }

  const Group id =
      message ? Group{first.rank, call.members.back().rank} : Group{record.group_id, 0};
  GroupSum& group = kind.groups[id];
  ++group.calls;
  group.payload_bytes += payload_bytes;
  group.n_steps = n_steps;
}

std::vector<LateRank> latest_of(const KindSum& kind) {
  std::vector<LateRank> latest;
  for (const auto& [rank, late_us] : kind.lateness_us) {
    double total_us = 0.0;
    for (const double us : late_us) total_us += us;
    latest.push_back({rank, static_cast<int64_t>(late_us.size()), median(late_us), total_us});
  }
  std::stable_sort(latest.begin(), latest.end(), [](const LateRank& a, const LateRank& b) {
    return a.total_us > b.total_us;
  });
  return latest;
}

void add_bandwidth(CollectiveRecord& record, double mean_payload_bytes) {
  if (record.n < 2 || record.wire_us.median <= 0.0 || mean_payload_bytes <= 0.0) return;
  // Rows, their routing and their results: no bandwidth is common to them.
  if (record.op == "all_to_all" && !record.uniform) return;
  record.algbw_gb_s = mean_payload_bytes / record.wire_us.median * 1e-3;
  const std::optional<double> factor = bus_factor(record.op, record.n);
  if (factor) record.busbw_gb_s = *record.algbw_gb_s * *factor;
}

CollectiveRecord record_of(const Breakdown& breakdown,
                           Phase phase,
                           const Kind& name,
                           const KindSum& kind) {
  const auto& [op, axis, host, site, algorithm] = name;
  CollectiveRecord record;
  record.op = op;
  record.axis = axis_name(axis);
  record.site = site_name(site);
  record.algorithm = algorithm_name(algorithm);
  const std::map<Axis, std::string>& transports =
      host ? breakdown.input.host_transports : breakdown.input.transports;
  const auto transport = transports.find(axis);
  record.transport = kind.n == 1                     ? "none"
                     : transport == transports.end() ? "unknown"
                                                     : transport->second;
  record.n = kind.n;
  record.calls = kind.calls;
  record.groups = static_cast<int64_t>(kind.groups.size());
  for (const auto& [id, group] : kind.groups) {
    record.per_step =
        std::max(record.per_step, per(static_cast<double>(group.calls), group.n_steps));
    record.payload_bytes_per_step =
        std::max(record.payload_bytes_per_step, per_rounded(group.payload_bytes, group.n_steps));
  }
  record.uniform = kind.min_payload == kind.max_payload;
  record.payload_bytes = per_rounded(kind.payload_bytes, kind.calls);
  record.wire_bytes_per_device = per_rounded(kind.wire_bytes, kind.calls);
  if (!kind.wait_us.empty() && static_cast<int64_t>(kind.wait_us.size()) >= kind.unresolved) {
    record.wait_us = median(kind.wait_us);
  }
  record.wire_is_bound = kind.wire_us.empty();
  const Summary wire = summarise(record.wire_is_bound ? kind.wire_bound_us : kind.wire_us);
  record.wire_us = {wire.median, wire.p90, wire.max};
  int64_t n_steps = 0;
  int64_t wire_ns = 0;
  for (const auto& [rank, ns] : kind.wire_ns_of_rank) {
    wire_ns += ns;
    n_steps += breakdown.n_steps(rank, phase);
  }
  record.exposed_us = per(ns_to_us(wire_ns), n_steps);
  record.unresolved = kind.unresolved;
  record.latest = latest_of(kind);
  add_bandwidth(record, per(static_cast<double>(kind.payload_bytes), kind.calls));
  return record;
}

}  // namespace

std::vector<CollectiveRecord> collectives_of(const Breakdown& breakdown, Phase phase) {
  std::map<Kind, KindSum> kinds;
  for (const CommCall& call : breakdown.comms.calls) {
    // A message counts where it was received.
    const CommEvent& event = event_of(breakdown, call.members.back());
    if (!in_phase(event.scope, phase)) continue;
    const std::string op =
        is_message(event.comm) ? "send_recv" : std::string(comm_op_name(event.comm.op));
    KindSum& kind =
        kinds[{op, event.comm.axis, event.comm.host, event.scope.site, event.comm.algorithm}];
    add_call(breakdown, call, phase, kind);
  }
  std::vector<CollectiveRecord> records;
  records.reserve(kinds.size());
  for (const auto& [name, kind] : kinds) {
    records.push_back(record_of(breakdown, phase, name, kind));
  }
  return records;
}

}  // namespace testbed
