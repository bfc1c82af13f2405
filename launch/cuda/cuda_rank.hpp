// What a rank with a GPU is made of: its device, its groups over NCCL and their twins between the
// hosts, and what it knows of the machine.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/nvml_window.hpp"
#include "launch/cuda/cuda_process.hpp"
#include "parallel/comm/infiniband.hpp"
#include "parallel/comm/nccl_log.hpp"
#include "parallel/comm/nccl_world.hpp"
#include "parallel/comm/peer_all_reduce.hpp"
#include "runtime/commands/rank_context.hpp"

namespace testbed {

// Dense FLOP/s of products in the compute dtype; 0 for a GPU of which no peak is known.
double peak_flops(const DeviceSpec& spec, DType compute);

// What a rank would hold on its GPU, and what is free there.
MemoryRecord gpu_memory(const RunConfig& config,
                        const RunInputs& inputs,
                        const Mesh& mesh,
                        const CudaProcess& process);

// Small all-reduces of a group of several by our own kernels, where its GPUs can map each other;
// the ranks of the group call it together. Says how they are done, or why not by us.
std::string use_peers(const MpiWorld& world,
                      Communicator& host,
                      NcclCommunicator& gpus,
                      cuda::Queue& queue,
                      double deadline_s,
                      int64_t capacity_bytes = PeerAllReduce::Options{}.capacity_bytes);

// FaultSurroundings::flip_on_device of this device, which outlives it.
std::function<void(TensorView, int)> bit_flipper(Device& device, cuda::Queue& queue);

class CudaRank {
 public:
  // All ranks call it together. Throws ConfigError for a mesh that does not match the world, and
  // for what does not fit a GPU's memory.
  CudaRank(MpiWorld& world, CudaProcess& process, const RunConfig& config, const RunInputs& inputs);
  ~CudaRank();
  CudaRank(const CudaRank&) = delete;
  CudaRank& operator=(const CudaRank&) = delete;
  const RankContext& context() const { return *context_; }

 private:
  // A group's GPUs, and the same ranks between the hosts.
  struct Group {
    std::unique_ptr<Communicator> host;
    std::unique_ptr<NcclCommunicator> gpus;
    std::vector<NcclChoice> choices = {};  // of NCCL's, once the links are proven
  };
  Group make_group(MpiWorld& world, const Mesh& mesh, Axis axis, bool messages);
  std::shared_ptr<Faults> add_faults(MpiWorld& world, const RunConfig& config);
  MachineInfo machine_info(const MpiWorld& world, const RunConfig& config);
  void begin_counters();
  DeviceCounters end_counters();
  double read_bandwidth_sample();
  // Once everything has run: what NCCL's log says of each group. Throws JobError where the layout
  // asked for is not what was used.
  void prove_links();
  NcclProtocol protocol_of(const CommRecord& comm) const;

  MpiWorld& world_;
  CudaProcess& process_;
  std::unique_ptr<ControlChannel> control_;
  std::unique_ptr<NcclWorld> nccl_;
  std::map<Axis, Group> groups_;
  std::string peers_note_;  // how small all-reduces are done, or why not by us
  std::unique_ptr<Device> device_;
  Tensor read_buffer_;
  std::optional<NvmlWindow> counters_;
  std::optional<PortBytes> ports_at_begin_;  // of the window
  bool proven_ = false;
  std::unique_ptr<RankContext> context_;
};

}  // namespace testbed
