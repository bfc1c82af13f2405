// CollectiveTimes: how long each algorithm of a collective takes on a cluster with nothing else on
// its links: the schedule played as flows. The simulator chooses algorithms by it, and takes the
// time itself from it for groups that share no link with others.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/sim/virtual_time.hpp"
#include "parallel/comm/collective_schedule.hpp"

namespace testbed {

// What decides the time of a collective besides the algorithm. Nodes are numbered by first
// appearance, so that equal groups elsewhere have the same key.
struct CollectiveKey {
  CommOp op = CommOp::all_reduce;
  int64_t n_bytes = 0;  // payload as make_schedule counts it
  std::vector<int> node_of;
  std::vector<int> device_of;
  bool operator<(const CollectiveKey& o) const {
    return std::tie(op, n_bytes, node_of, device_of) <
           std::tie(o.op, o.n_bytes, o.node_of, o.device_of);
  }
};
CollectiveKey collective_key(CommOp op, int64_t n_bytes, const GroupPlacement& placement);

struct TimedAlgorithm {
  CommAlgorithm algorithm = CommAlgorithm::none;
  double seconds = 0.0;
};

// Plays a schedule from within an actor: rank i of the group sits on device ends[i]. Returns when
// the last flow has arrived.
void play(VirtualTime& time,
          const ClusterSpec& cluster,
          const CollectiveSchedule& schedule,
          const std::vector<int>& ends);

class CollectiveTimes {
 public:
  // `only`: the algorithm that all-reduces have to take (--algorithm). fixed_order: none whose sums
  // are in no stated order (NVLS: the switch adds what comes first).
  explicit CollectiveTimes(const ClusterSpec& cluster,
                           std::optional<CommAlgorithm> only = std::nullopt,
                           bool fixed_order = false);

  // Plays every algorithm of every key that is not known yet. Makes a VirtualTime: none may exist.
  // Throws ConfigError if the links cannot do the algorithm asked for.
  void compute(const std::vector<CollectiveKey>& keys);

  // All algorithms, the fastest first; nullptr if the key was not computed.
  const std::vector<TimedAlgorithm>* find(const CollectiveKey& key) const;

  const ClusterSpec& cluster() const { return cluster_; }

 private:
  std::vector<CommAlgorithm> allowed(const CollectiveKey& key,
                                     const GroupPlacement& placement) const;

  ClusterSpec cluster_;
  std::optional<CommAlgorithm> only_;
  bool fixed_order_;
  std::map<CollectiveKey, std::vector<TimedAlgorithm>> times_;
};

}  // namespace testbed
