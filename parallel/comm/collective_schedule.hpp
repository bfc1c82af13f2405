// Collectives as data: which rank sends how many bytes to which, in which order. The simulator
// plays a schedule as transfers over its platform, so bandwidth sharing and contention are its;
// what a schedule adds is the algorithm, the latencies and the rate that a library reaches
// (LinkTiming).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/group_placement.hpp"

namespace testbed {

constexpr int node_switch = -1;  // as a flow's end: the switch of the node (NVLS)

// Alone on its way a flow moves at bytes_per_s, what its protocol leaves of the line rate: the
// links carry n_bytes * line rate / bytes_per_s, and flows share them. Latencies are the rounds'.
struct Flow {
  int source = 0;  // rank within the group, or node_switch
  int target = 0;
  int64_t n_bytes = 0;
  double bytes_per_s = 0.0;  // 0: the line rate
};

// Rounds run one after the other: latency_s passes, then the round's flows start together, and the
// round ends with the last of them.
struct Round {
  double latency_s = 0.0;
  std::vector<Flow> flows;
};

struct CollectiveSchedule {
  CommOp op = CommOp::barrier;
  CommAlgorithm algorithm = CommAlgorithm::none;
  std::vector<Round> rounds;
};

// The algorithms that the links of these ranks run for such a payload; the first is the plainest.
// Empty for a group of one.
std::vector<CommAlgorithm> algorithms_for(CommOp op,
                                          const GroupPlacement& placement,
                                          const ClusterSpec& cluster,
                                          int64_t n_bytes);

// n_bytes is the payload as nccl-tests counts it: each rank's buffer for all_reduce and broadcast,
// the whole (count * n) for all_gather, reduce_scatter and all_to_all. Parts are whole elements.
// Broadcasts start at rank 0. send is one message from rank 0 to rank 1.
CollectiveSchedule make_schedule(CommOp op,
                                 CommAlgorithm algorithm,
                                 int64_t n_bytes,
                                 const GroupPlacement& placement,
                                 const ClusterSpec& cluster,
                                 int64_t element_bytes = 1);

}  // namespace testbed
