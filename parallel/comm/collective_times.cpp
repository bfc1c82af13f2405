#include "parallel/comm/collective_times.hpp"

#include <algorithm>
#include <cmath>
#include <exception>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

// One node after the other, ranks in order: what a key's placement means on the platform.
std::vector<int> ends_of(const CollectiveKey& key, const ClusterSpec& cluster) {
  std::vector<int> ends;
  ends.reserve(key.node_of.size());
  for (size_t i = 0; i < key.node_of.size(); ++i) {
    ends.push_back(key.node_of[i] * cluster.node.n_devices + key.device_of[i]);
  }
  return ends;
}

// Differences of a clock that carries on lose its last bits; a picosecond is below every figure.
double to_picoseconds(double seconds) {
  constexpr double per_second = 1e12;
  return std::round(seconds * per_second) / per_second;
}

}  // namespace

CollectiveKey collective_key(CommOp op, int64_t n_bytes, const GroupPlacement& placement) {
  return {.op = op,
          .n_bytes = n_bytes,
          .node_of = by_first_appearance(placement.node_of),
          .device_of = placement.device_of};
}

void play(VirtualTime& time,
          const ClusterSpec& cluster,
          const CollectiveSchedule& schedule,
          const std::vector<int>& ends) {
  const int n = cluster.node.n_devices;
  const auto switch_of = [&](int end) { return cluster.n_devices() + end / n; };
  std::vector<VirtualTime::FlowId> flows;
  for (const Round& round : schedule.rounds) {
    if (round.latency_s > 0.0) time.sleep_until(time.now() + round.latency_s);
    flows.clear();
    flows.reserve(round.flows.size());
    for (const Flow& flow : round.flows) {
      if (flow.n_bytes == 0) continue;
      const int partner = flow.source == node_switch ? flow.target : flow.source;
      const int node_middle = switch_of(ends[static_cast<size_t>(partner)]);
      const int source =
          flow.source == node_switch ? node_middle : ends[static_cast<size_t>(flow.source)];
      const int target =
          flow.target == node_switch ? node_middle : ends[static_cast<size_t>(flow.target)];
      const bool same_node =
          flow.source == node_switch || flow.target == node_switch || source / n == target / n;
      flows.push_back(time.start_flow(
          source, target, occupied_bytes(cluster, same_node, flow.n_bytes, flow.bytes_per_s)));
    }
    for (const VirtualTime::FlowId flow : flows) {
      time.wait_flow(flow);
      time.forget_flow(flow);
    }
  }
}

CollectiveTimes::CollectiveTimes(const ClusterSpec& cluster,
                                 std::optional<CommAlgorithm> only,
                                 bool fixed_order)
    : cluster_(cluster), only_(only), fixed_order_(fixed_order) {}

// What the links can do and the run allows.
std::vector<CommAlgorithm> CollectiveTimes::allowed(const CollectiveKey& key,
                                                    const GroupPlacement& placement) const {
  std::vector<CommAlgorithm> algorithms = algorithms_for(key.op, placement, cluster_, key.n_bytes);
  if (fixed_order_) std::erase(algorithms, CommAlgorithm::nvls);
  if (!only_ || key.op != CommOp::all_reduce) return algorithms;
  if (std::find(algorithms.begin(), algorithms.end(), *only_) != algorithms.end()) return {*only_};
  std::string names;
  for (const CommAlgorithm a : algorithms) names += " " + std::string(algorithm_name(a));
  throw ConfigError("--algorithm " + std::string(algorithm_name(*only_)) + ": the links of " +
                    cluster_.name + " can do" + names + (fixed_order_ ? " in a fixed order" : ""));
}

void CollectiveTimes::compute(const std::vector<CollectiveKey>& keys) {
  struct Case {
    const CollectiveKey* key;
    CollectiveSchedule schedule;
    double seconds;
  };
  std::vector<Case> cases;
  ClusterSpec platform = cluster_;
  platform.n_nodes = 1;
  for (const CollectiveKey& key : keys) {
    if (!times_.try_emplace(key).second) continue;
    const GroupPlacement placement{key.node_of, key.device_of};
    const std::vector<CommAlgorithm> algorithms = allowed(key, placement);
    CHECK(!algorithms.empty());
    for (const CommAlgorithm algorithm : algorithms) {
      cases.push_back(
          {&key, make_schedule(key.op, algorithm, key.n_bytes, placement, cluster_), 0.0});
    }
    for (const int node : key.node_of) platform.n_nodes = std::max(platform.n_nodes, node + 1);
  }
  if (cases.empty()) return;
  const std::unique_ptr<VirtualTime> time = make_virtual_time(platform);
  std::exception_ptr error;
  const auto left = time->run({[&] {
    try {
      for (Case& each : cases) {
        const double begin = time->now();
        play(*time, platform, each.schedule, ends_of(*each.key, platform));
        each.seconds = to_picoseconds(time->now() - begin);
      }
    } catch (const std::exception&) {
      error = std::current_exception();
    }
  }});
  if (error) std::rethrow_exception(error);
  CHECK(left.empty());
  for (const Case& each : cases) {
    std::vector<TimedAlgorithm>& of_key = times_[*each.key];
    const auto slower =
        std::upper_bound(of_key.begin(), of_key.end(), each.seconds, [](double s, const auto& a) {
          return s < a.seconds;
        });
    of_key.insert(slower, {each.schedule.algorithm, each.seconds});
  }
}

const std::vector<TimedAlgorithm>* CollectiveTimes::find(const CollectiveKey& key) const {
  const auto entry = times_.find(key);
  return entry == times_.end() ? nullptr : &entry->second;
}

}  // namespace testbed
