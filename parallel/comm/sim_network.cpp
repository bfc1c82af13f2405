#include "parallel/comm/sim_network.hpp"

#include <algorithm>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

enum LinkKind : int { device_up, device_down, socket_out, socket_in, nic_out, nic_in, fabric };

}  // namespace

SimNetwork::SimNetwork(VirtualTime& time,
                       const ClusterSpec& cluster,
                       const CollectiveTimes& times,
                       SimNetworkOptions options)
    : time_(time), cluster_(cluster), times_(times), options_(options) {}

SimGroup& SimNetwork::make_group(const std::vector<int>& world_ranks, Axis axis) {
  SimGroup& group = groups_.emplace_back();
  const int size = static_cast<int>(world_ranks.size());
  group.info = {.axis = axis, .rank = 0, .size = size, .world_ranks = world_ranks};
  group.placement = placement_of(world_ranks, cluster_.node.n_devices);
  if (size > 1) group.barrier = time_.make_barrier(size);
  for (std::vector<Bytes>& slots : group.gathered) slots.resize(world_ranks.size());
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

// The links that the platform sends a flow over, up to the fabric, which counts as one.
std::vector<SimNetwork::LinkName> SimNetwork::links_between(int source, int target) const {
  const int n = cluster_.node.n_devices;
  const int a = source % n;
  const int b = target % n;
  const int node_a = node_of(source);
  const int node_b = node_of(target);
  if (node_a != node_b) {
    const int per_nic = cluster_.fabric->devices_per_nic;
    std::vector<LinkName> links{{nic_out, node_a, a / per_nic}, {nic_in, node_b, b / per_nic}};
    const int per_leaf = cluster_.fabric->nodes_per_leaf_switch;
    if (node_a / per_leaf != node_b / per_leaf) links.push_back({fabric, 0, 0});
    return links;
  }
  std::vector<LinkName> links{{device_up, node_a, a}, {device_down, node_a, b}};
  const int per_socket = cluster_.node.devices_per_socket;
  if (cluster_.node.topology == NodeTopology::tree && a / per_socket != b / per_socket) {
    links.push_back({socket_out, node_a, a / per_socket});
    links.push_back({socket_in, node_a, b / per_socket});
  }
  return links;
}

void SimNetwork::find_exclusive_groups() {
  constexpr int nobody = -1;
  constexpr int several = -2;
  constexpr int messages = -3;
  std::map<LinkName, int> user_of;
  const auto use = [&](int source, int target, int user) {
    for (const LinkName& link : links_between(source, target)) {
      int& entry = user_of.try_emplace(link, nobody).first->second;
      entry = entry == nobody || entry == user ? user : several;
    }
  };
  // Which of its pairs a group uses depends on the algorithm: all of them count.
  const auto each_pair = [](const SimGroup& group, auto&& visit) {
    for (const int a : group.info.world_ranks) {
      for (const int b : group.info.world_ranks) {
        if (a != b) visit(a, b);
      }
    }
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    each_pair(groups_[g], [&](int a, int b) { use(a, b, static_cast<int>(g)); });
  }
  for (const auto& [source, target] : message_pairs_) use(source, target, messages);
  for (size_t g = 0; g < groups_.size(); ++g) {
    bool alone = options_.memoise;
    each_pair(groups_[g], [&](int a, int b) {
      for (const LinkName& link : links_between(a, b)) {
        alone = alone && user_of.at(link) == static_cast<int>(g);
      }
    });
    groups_[g].exclusive = alone;
  }
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

void SimNetwork::collective(
    SimGroup& group, SimClock& clock, CommOp op, CommAlgorithm algorithm, int64_t n_bytes) {
  const bool alone = group.exclusive || options_.no_waiting;
  // Flows begin when they begin: the simulation has to be where this rank is.
  if (!alone) time_.sleep_until(clock.now_s());
  const double arrival_s = clock.now_s();
  group.last_arrival_s =
      group.n_arrived == 0 ? arrival_s : std::max(group.last_arrival_s, arrival_s);
  if (++group.n_arrived == group.info.size) {  // the last one does the work
    group.n_arrived = 0;
    if (alone) {
      group.end_s = group.last_arrival_s + seconds_of(group, op, algorithm, n_bytes);
    } else {
      play(time_,
           cluster_,
           make_schedule(op, algorithm, n_bytes, group.placement, cluster_),
           group.info.world_ranks);
      group.end_s = time_.now();
    }
  }
  time_.wait_barrier(group.barrier);
  if (options_.no_waiting) {
    clock.add(seconds_of(group, op, algorithm, n_bytes));
  } else {
    clock.wait_until(group.end_s);
  }
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

void SimNetwork::wait_received(const SimMessage& message, SimClock& clock) {
  if (message.flow >= 0) {
    clock.wait_until(time_.wait_flow(message.flow) + message.latency_s);
  } else {
    clock.add(message.seconds);
  }
}

}  // namespace testbed
