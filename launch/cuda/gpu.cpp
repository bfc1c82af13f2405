#include "launch/gpu.hpp"

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "kernels/probes/cuda/bandwidth.hpp"
#include "kernels/probes/cuda/probe_gpu.hpp"
#include "launch/cuda/cuda_rank.hpp"
#include "runtime/commands/probe.hpp"

namespace testbed {
namespace {

// The groups of 2, 4, 8 and all GPUs, as NCCL does them and as ours does. All ranks make groups of
// a size together, and the first is measured.
class GpuProbeGroups {
 public:
  GpuProbeGroups(MpiWorld& world,
                 ControlChannel& control,
                 NcclWorld& nccl,
                 cuda::Queue& queue,
                 double deadline_s) {
    for (const int n : sizes(world.size())) {
      std::vector<int> ranks;
      std::vector<std::string> hosts;
      for (int r = 0; r < n; ++r) {
        ranks.push_back(world.rank() / n * n + r);
        hosts.push_back(world.hosts()[static_cast<size_t>(ranks.back())]);
      }
      Communicator& host = *hosts_.emplace_back(world.make_host_group(ranks, Axis::tp));
      ProbeGroup group{.size = n, .as_chosen = make(nccl, host, nullptr), .all_reduce = {}};
      for (const CommAlgorithm algorithm : {CommAlgorithm::one_shot, CommAlgorithm::two_shot}) {
        PeerAllReduce::Made made =
            PeerAllReduce::make(queue, host, options(hosts, deadline_s, algorithm));
        if (!everywhere(control, made.peers != nullptr)) break;
        group.all_reduce.push_back({algorithm, make(nccl, host, std::move(made.peers))});
      }
      if (world.rank() >= n) {
        group.as_chosen = nullptr;
        for (ProbeGroup::Forced& forced : group.all_reduce) forced.group = nullptr;
      }
      groups_.push_back(std::move(group));
    }
  }
  const std::vector<ProbeGroup>& groups() const { return groups_; }

 private:
  // Groups are made by all ranks of the job together: what one of them lacks none has.
  static bool everywhere(ControlChannel& control, bool mine) {
    const std::vector<Bytes> all = control.all_gather(Bytes(mine ? 1 : 0));
    return std::none_of(all.begin(), all.end(), [](const Bytes& b) { return b.empty(); });
  }
  static std::vector<int> sizes(int world_size) {
    std::vector<int> sizes;
    for (const int n : {2, 4, 8}) {
      if (n < world_size && world_size % n == 0) sizes.push_back(n);
    }
    if (world_size > 1) sizes.push_back(world_size);
    return sizes;
  }
  static PeerAllReduce::Options options(const std::vector<std::string>& hosts,
                                        double deadline_s,
                                        CommAlgorithm algorithm) {
    PeerAllReduce::Options options{.hosts = hosts, .deadline_s = deadline_s};
    const int64_t all = options.capacity_bytes;
    options.sizes = algorithm == CommAlgorithm::one_shot ? PeerSizes{all, all} : PeerSizes{0, all};
    return options;
  }
  Communicator* make(NcclWorld& nccl, Communicator& host, std::unique_ptr<PeerAllReduce> peers) {
    NcclCommunicator& group = *gpus_.emplace_back(nccl.make_group(host, /*messages=*/true));
    if (peers != nullptr) group.set_peers(std::move(peers));
    return &group;
  }

  std::vector<std::unique_ptr<Communicator>> hosts_;
  std::vector<std::unique_ptr<NcclCommunicator>> gpus_;
  std::vector<ProbeGroup> groups_;
};

}  // namespace

std::optional<RunOutcome> run_on_gpu(MpiWorld& world,
                                     const RunConfig& config,
                                     const RunInputs& inputs) {
  const std::unique_ptr<ControlChannel> control = world.make_control();
  CudaProcess process(world,
                      *control,
                      {.allow_shared_gpu = config.allow_shared_gpu,
                       .layout = config.layout,
                       .deterministic = config.deterministic});
  const CudaRank rank(world, process, config, inputs);
  return run_rank(rank.context());
}

int probe_on_gpu(MpiWorld& world, const ProbeConfig& config) {
  world.set_waiting({.deadline_s = config.timeout_s,
                     .may_spin = world.n_local_ranks() <= world.n_usable_cores()});
  const std::unique_ptr<ControlChannel> control = world.make_control();
  CudaProcess process(world, *control, {});
  CudaStreams& streams = *process.streams();
  NcclWorld nccl(world, *control, streams.queue, streams.clock, config.timeout_s);
  const GpuProbeGroups groups(world, *control, nccl, streams.queue, config.timeout_s);
  CudaDevice device(process.streams(), config.compute_dtype, process.description());
  const Tensor buffer = cuda::device_tensor(DType::I32, {cuda::read_buffer_bytes() / 4});
  const DeviceSpec& spec = process.spec();
  run_probe(
      {.config = config,
       .device = device,
       .control = *control,
       .groups = groups.groups(),
       .peak_flops = peak_flops(spec, config.compute_dtype),
       .f32_peak_flops = peak_flops(spec, DType::F32),
       .read_bandwidth_sample = [&] { return cuda::read_bandwidth_sample(streams.queue, buffer); },
       .gpu = &spec,
       .device_curves =
           [&] { return cuda::probe_gpu(streams.queue, cuda::sizes_for(spec.chip)); }});
  return static_cast<int>(ExitCode::ok);
}

}  // namespace testbed
