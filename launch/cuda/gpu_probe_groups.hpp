// The groups of GPUs that `testbed probe` measures.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "parallel/comm/mpi_world.hpp"
#include "parallel/comm/nccl_world.hpp"
#include "parallel/comm/peer_all_reduce.hpp"
#include "runtime/probe/measure_collectives.hpp"
#include "runtime/probe/measure_pairs.hpp"

namespace testbed {

// Of 2, 4, 8 and all GPUs: as a run has them, with NCCL's all-reduce alone, and with each of ours
// as far as its memory goes, where the GPUs can map each other's. All ranks make groups of a size
// together, and the first is measured.
class GpuProbeGroups {
 public:
  struct Options {
    double deadline_s = 120.0;
    int64_t peer_capacity_bytes = PeerAllReduce::Options{}.capacity_bytes;
  };
  // All ranks together. What is given outlives it.
  GpuProbeGroups(MpiWorld& world,
                 ControlChannel& control,
                 NcclWorld& nccl,
                 cuda::Queue& queue,
                 const Options& options);
  const std::vector<ProbeGroup>& groups() const { return groups_; }
  // None for one rank.
  const std::optional<MessageWays>& ways() const { return ways_; }

 private:
  void add_groups(int n);
  void add_peers(ProbeGroup& group, Communicator& host, CommAlgorithm algorithm);
  NcclCommunicator& make(Communicator& host, bool messages);

  MpiWorld& world_;
  ControlChannel& control_;
  NcclWorld& nccl_;
  cuda::Queue& queue_;
  Options options_;
  std::vector<std::unique_ptr<Communicator>> hosts_;
  std::vector<std::unique_ptr<NcclCommunicator>> gpus_;
  std::vector<ProbeGroup> groups_;
  std::optional<MessageWays> ways_;
};

}  // namespace testbed
