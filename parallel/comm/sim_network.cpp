#include "parallel/comm/sim_network.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

// Uneven flows end one by one, and each end shares the links anew: 4,032 of 64 ranks take 2.4 s of
// the simulator's own time, 992 of 32 ranks 0.1 s.
constexpr size_t max_played_flows = 256;

RowMatrix matrix_of(const std::vector<SimRows>& parts, int n_nodes) {
  RowMatrix matrix{.kind = parts.front().kind,
                   .size = static_cast<int>(parts.size()),
                   .n_nodes = n_nodes,
                   .bytes = {},
                   .node_bytes = {}};
  const bool nodes_known = !parts.front().node_rows.empty();
  matrix.bytes.reserve(parts.size() * parts.size());
  matrix.node_bytes.reserve(nodes_known ? parts.size() * static_cast<size_t>(n_nodes) : 0);
  for (const SimRows& part : parts) {
    CHECK(part.kind == matrix.kind && part.row_bytes == parts.front().row_bytes &&
          part.node_rows.empty() != nodes_known);
    for (const int64_t rows : part.rows) matrix.bytes.push_back(rows * part.row_bytes);
    for (const int64_t rows : part.node_rows) matrix.node_bytes.push_back(rows * part.row_bytes);
  }
  return matrix;
}

std::vector<int64_t> sent_by_rank(const CollectiveSchedule& schedule, int size) {
  std::vector<int64_t> sent(static_cast<size_t>(size), 0);
  for (const Round& round : schedule.rounds) {
    for (const Flow& flow : round.flows) sent[static_cast<size_t>(flow.source)] += flow.n_bytes;
  }
  return sent;
}

}  // namespace

SimNetwork::SimNetwork(VirtualTime& time,
                       const ClusterSpec& cluster,
                       const CollectiveTimes& times,
                       SimNetworkOptions options)
    : time_(time), cluster_(cluster), times_(times), options_(options) {}

SimGroup& SimNetwork::make_group(const std::vector<int>& world_ranks, Axis axis) {
  SimGroup& group = groups_.emplace_back();
  const int size = static_cast<int>(world_ranks.size());
  group.placement = placement_of(world_ranks, cluster_.node.n_devices);
  group.info = {.axis = axis,
                .rank = 0,
                .size = size,
                .world_ranks = world_ranks,
                .node_of = by_first_appearance(group.placement.node_of)};
  if (size > 1) group.barrier = time_.make_barrier(size);
  for (std::vector<Bytes>& slots : group.gathered) slots.resize(world_ranks.size());
  for (std::vector<SimRows>& slots : group.exchanged) slots.resize(world_ranks.size());
  return group;
}

std::string SimNetwork::transport_of(const SimGroup& group) const {
  const std::vector<int>& nodes = group.placement.node_of;
  const std::set<int> distinct(nodes.begin(), nodes.end());
  const bool within = distinct.size() < nodes.size();
  const bool across = distinct.size() > 1;
  std::string text = within || !across ? cluster_.node.link.name : "";
  if (across) text += (text.empty() ? "" : " + ") + cluster_.fabric->nic.name;
  return text;
}

std::map<Axis, std::string> SimNetwork::transports() const {
  std::map<Axis, std::set<std::string>> seen;
  for (const SimGroup& group : groups_) {
    if (group.info.size > 1) seen[group.info.axis].insert(transport_of(group));
  }
  std::map<Axis, std::string> names;
  for (const auto& [axis, all] : seen) {
    std::string& name = names[axis];
    for (const std::string& one : all) name += (name.empty() ? "" : " or ") + one;
  }
  return names;
}

void SimNetwork::expect_messages(int source, int target) {
  if (source != target) message_pairs_.insert({source, target});
}

const std::vector<TimedAlgorithm>& SimNetwork::algorithms(SimGroup& group,
                                                          CommOp op,
                                                          int64_t n_bytes) {
  const auto [entry, is_new] = group.times.try_emplace({op, n_bytes});
  if (!entry->second.empty()) return entry->second;
  CollectiveKey key = collective_key(op, n_bytes, group.placement);
  if (const std::vector<TimedAlgorithm>* known = times_.find(key)) {
    return entry->second = *known;
  }
  missing_.insert(std::move(key));
  throw TimesMissing{};
}

double SimNetwork::seconds_of(SimGroup& group,
                              CommOp op,
                              CommAlgorithm algorithm,
                              int64_t n_bytes) {
  for (const TimedAlgorithm& each : algorithms(group, op, n_bytes)) {
    if (each.algorithm == algorithm) return each.seconds;
  }
  throw InternalError("a collective with an algorithm that its links cannot do");
}

void SimNetwork::meet(SimGroup& group,
                      SimClock& clock,
                      const std::function<double()>& seconds,
                      const std::function<CollectiveSchedule()>& schedule) {
  const bool alone = group.exclusive || options_.no_waiting;
  // Flows begin when they begin: the simulation has to be where this rank is.
  if (!alone) time_.sleep_until(clock.now_s());
  const double arrival_s = clock.now_s();
  group.last_arrival_s =
      group.n_arrived == 0 ? arrival_s : std::max(group.last_arrival_s, arrival_s);
  if (++group.n_arrived == group.info.size) {  // the last one does the work
    group.n_arrived = 0;
    if (alone) {
      group.seconds = seconds();
      group.end_s = group.last_arrival_s + group.seconds;
    } else {
      play(time_, cluster_, schedule(), group.info.world_ranks);
      group.end_s = time_.now();
    }
  }
  time_.wait_barrier(group.barrier);
  if (options_.no_waiting) {
    clock.add(group.seconds);
  } else {
    clock.wait_until(group.end_s);
  }
}

void SimNetwork::collective(
    SimGroup& group, SimClock& clock, CommOp op, CommAlgorithm algorithm, int64_t n_bytes) {
  meet(
      group,
      clock,
      [&] { return seconds_of(group, op, algorithm, n_bytes); },
      [&] { return make_schedule(op, algorithm, n_bytes, group.placement, cluster_); });
}

void SimNetwork::exchange(SimGroup& group, SimClock& clock, size_t parity) {
  double seconds = HUGE_VAL;
  // The fastest, were it alone: an engine's choice does not know who else is on the links.
  const auto choose = [&] {
    const RowMatrix rows = matrix_of(group.exchanged[parity], group.info.n_nodes());
    CollectiveSchedule best;
    for (const CommAlgorithm algorithm : exchange_algorithms(rows, group.placement, cluster_)) {
      CollectiveSchedule each = exchange_schedule(algorithm, rows, group.placement, cluster_);
      const double alone_s = seconds_alone(each, cluster_, group.info.world_ranks);
      if (alone_s >= seconds) continue;
      seconds = alone_s;
      best = std::move(each);
    }
    group.exchange_algorithm = best.algorithm;
    group.exchange_sent = sent_by_rank(best, group.info.size);
    return best;
  };
  const auto alone_s = [&] {
    choose();
    return seconds;
  };
  const auto played = [&] {
    CollectiveSchedule best = choose();
    const bool few = best.rounds.front().flows.size() <= max_played_flows;
    return few ? best : condensed(best, group.placement);
  };
  meet(group, clock, alone_s, played);
}

SimNetwork::Channel& SimNetwork::channel(int source, int target, int number) {
  Channel& channel = channels_[{source, target, number}];
  if (channel.semaphore < 0) channel.semaphore = time_.make_semaphore();
  return channel;
}

const std::vector<TimedAlgorithm>& SimNetwork::message_times(int source,
                                                             int target,
                                                             int64_t n_bytes) {
  const bool same_node = node_of(source) == node_of(target);
  std::vector<TimedAlgorithm>& times = message_times_[{same_node, n_bytes}];
  if (!times.empty()) return times;
  CollectiveKey key = collective_key(
      CommOp::send, n_bytes, placement_of({source, target}, cluster_.node.n_devices));
  if (const std::vector<TimedAlgorithm>* known = times_.find(key)) return times = *known;
  missing_.insert(std::move(key));
  throw TimesMissing{};
}

std::shared_ptr<SimMessage> SimNetwork::send(
    int source, int target, int number, int64_t n_bytes, Bytes data, SimClock& clock) {
  Channel& to = channel(source, target, number);
  auto message = std::shared_ptr<SimMessage>(new SimMessage, [this](SimMessage* m) {
    if (m->flow >= 0) time_.forget_flow(m->flow);
    delete m;
  });
  message->data = std::move(data);
  if (options_.no_waiting) {
    message->seconds = message_times(source, target, n_bytes).front().seconds;
  } else {
    const CollectiveSchedule schedule =
        make_schedule(CommOp::send,
                      CommAlgorithm::direct,
                      n_bytes,
                      placement_of({source, target}, cluster_.node.n_devices),
                      cluster_);
    CHECK(schedule.rounds.size() == 1 && schedule.rounds.front().flows.size() == 1);
    const Round& round = schedule.rounds.front();
    message->latency_s = round.latency_s;
    time_.sleep_until(clock.now_s());
    message->flow = time_.start_flow(source,
                                     target,
                                     occupied_bytes(cluster_,
                                                    node_of(source) == node_of(target),
                                                    n_bytes,
                                                    round.flows.front().bytes_per_s));
  }
  to.sent[to.n_sent++] = message;
  time_.release(to.semaphore);
  return message;
}

int64_t SimNetwork::post_receive(int source, int target, int number) {
  return channel(source, target, number).n_posted++;
}

std::shared_ptr<SimMessage> SimNetwork::take(int source,
                                             int target,
                                             int channel_number,
                                             int64_t number) {
  Channel& from = channel(source, target, channel_number);
  // The semaphore counts messages sent; one that was passed over has been counted already.
  while (from.n_sent <= number) time_.acquire(from.semaphore);
  const auto entry = from.sent.find(number);
  CHECK(entry != from.sent.end());
  std::shared_ptr<SimMessage> message = std::move(entry->second);
  from.sent.erase(entry);
  return message;
}

void SimNetwork::wait_sent(const SimMessage& message, SimClock& clock) {
  if (message.flow >= 0) clock.wait_until(time_.wait_flow(message.flow));
}

int64_t SimNetwork::wait_received(const SimMessage& message, double posted_s, SimClock& clock) {
  if (message.flow < 0) {  // nobody waits: it was sent when the receive was posted
    clock.wait_until(posted_s + message.seconds);
    return 0;
  }
  const double arrived_s = time_.wait_flow(message.flow) + message.latency_s;
  clock.wait_until(arrived_s);
  return std::llround(arrived_s * 1e9);
}

}  // namespace testbed
