// Clusters with round figures and no calibration, on which simulated times can be worked out by
// hand, and what it takes to run actors on them.
#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/sim/sim_device.hpp"
#include "parallel/comm/sim_communicator.hpp"
#include "parallel/comm/sim_control.hpp"

namespace testbed {

// A device of 1 TB/s and 100 TFLOP/s, links of 100 GB/s, nodes of `devices`; NICs of 10 GB/s.
inline ClusterSpec toy_cluster(int devices, int nodes = 1) {
  DeviceSpec device{.name = "toy",
                    .description = "toy device",
                    .memory_bytes = int64_t{1} << 40,
                    .memory_bytes_per_s = 1e12,
                    .peak_flops = {{MathType::bf16, 1e14}, {MathType::f32, 1e13}}};
  ClusterSpec cluster{.name = "toy", .description = "toy cluster", .device = device};
  cluster.node.n_devices = devices;
  cluster.node.link = {.name = "toylink", .bytes_per_s = 1e11};
  cluster.n_nodes = nodes;
  if (nodes > 1) cluster.fabric = FabricSpec{.nic = {.name = "toynic", .bytes_per_s = 1e10}};
  return cluster;
}

// Memory of a simulated device.
inline TensorView simulated(int64_t n_bytes) {
  SimClock clock;
  static const DeviceSpec spec = toy_cluster(1).device;
  return SimDevice(spec, clock, DType::BF16, 0).allocate(DType::BF16, {n_bytes / 2}).view();
}

// n ranks of one group, each an actor that runs `body` with its communicator and clock.
class ToyRanks {
 public:
  // `collectives`: (op, bytes) that the ranks will do. `messages`: they may send each other some,
  // so that collectives have to be played.
  ToyRanks(const ClusterSpec& cluster,
           int n,
           const std::vector<std::pair<CommOp, int64_t>>& collectives = {},
           bool messages = true)
      : cluster_(cluster),
        times_(times_of(cluster_, n, collectives)),
        time_(make_virtual_time(cluster_)),
        network_(*time_, cluster_, times_, {}) {
    std::vector<int> ranks;
    for (int r = 0; r < n; ++r) ranks.push_back(r);
    SimGroup& group = network_.make_group(ranks, Axis::tp);
    for (int r = 0; messages && r < n; ++r) {
      for (int other = 0; other < n; ++other) network_.expect_messages(r, other);
    }
    network_.find_exclusive_groups();
    for (int r = 0; r < n; ++r) {
      clocks_.push_back(std::make_unique<SimClock>());
      groups_.push_back(std::make_unique<SimCommunicator>(network_, group, r, *clocks_.back(), 0));
    }
  }

  using Body = std::function<void(int rank, Communicator& group, SimClock& clock)>;
  // The ranks that cannot go on.
  std::vector<size_t> run(const Body& body) {
    std::vector<std::function<void()>> actors;
    for (size_t r = 0; r < groups_.size(); ++r) {
      actors.emplace_back([&, r] { body(static_cast<int>(r), *groups_[r], *clocks_[r]); });
    }
    return time_->run(actors);
  }
  double now_s(int rank) const { return clocks_[static_cast<size_t>(rank)]->now_s(); }

 private:
  static CollectiveTimes times_of(const ClusterSpec& cluster,
                                  int n,
                                  const std::vector<std::pair<CommOp, int64_t>>& collectives) {
    std::vector<int> ranks(static_cast<size_t>(n));
    std::iota(ranks.begin(), ranks.end(), 0);
    const GroupPlacement placement = placement_of(ranks, cluster.node.n_devices);
    std::vector<CollectiveKey> keys;
    for (const auto& [op, n_bytes] : collectives) {
      keys.push_back(collective_key(op, n_bytes, placement));
    }
    CollectiveTimes times(cluster);
    times.compute(keys);
    return times;
  }
  ClusterSpec cluster_;
  CollectiveTimes times_;
  std::unique_ptr<VirtualTime> time_;
  SimNetwork network_;
  std::vector<std::unique_ptr<SimClock>> clocks_;
  std::vector<std::unique_ptr<SimCommunicator>> groups_;
};

}  // namespace testbed
