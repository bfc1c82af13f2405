#include "launch/cuda/gpu_probe_groups.hpp"

#include "kernels/base/byte_stream.hpp"
#include "launch/cuda/cuda_rank.hpp"

namespace testbed {
namespace {

std::vector<int> sizes(int world_size) {
  std::vector<int> sizes;
  sizes.reserve(4);
  for (const int n : {2, 4, 8}) {
    if (n < world_size && world_size % n == 0) sizes.push_back(n);
  }
  if (world_size > 1) sizes.push_back(world_size);
  return sizes;
}

// Rank 0's answer, which is in the group that is measured, on every rank.
bool of_first_group(ControlChannel& control, bool mine) {
  ByteWriter out;
  out.put(mine);
  bool answer = false;
  ByteReader(control.broadcast(out.take(), 0)).get(answer);
  return answer;
}

}  // namespace

GpuProbeGroups::GpuProbeGroups(MpiWorld& world,
                               ControlChannel& control,
                               NcclWorld& nccl,
                               cuda::Queue& queue,
                               const Options& options)
    : world_(world), control_(control), nccl_(nccl), queue_(queue), options_(options) {
  for (const int n : sizes(world.size())) add_groups(n);
}

NcclCommunicator& GpuProbeGroups::make(Communicator& host, bool messages) {
  return *gpus_.emplace_back(nccl_.make_group(host, messages));
}

void GpuProbeGroups::add_groups(int n) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) ranks.push_back(world_.rank() / n * n + r);
  Communicator& host = *hosts_.emplace_back(world_.make_host_group(ranks, Axis::tp));
  NcclCommunicator& as_chosen = make(host, /*messages=*/true);
  use_peers(world_, host, as_chosen, queue_, options_.deadline_s, options_.peer_capacity_bytes);
  const bool everyone = n == world_.size();
  NcclCommunicator& nccl_alone = make(host, /*messages=*/everyone);
  if (everyone) ways_.emplace(MessageWays{.upwards = as_chosen, .downwards = nccl_alone});

  ProbeGroup group{.size = n,
                   .as_chosen = &as_chosen,
                   .all_reduce = {{.algorithm = CommAlgorithm::nccl, .group = &nccl_alone}}};
  for (const CommAlgorithm algorithm : {CommAlgorithm::one_shot, CommAlgorithm::two_shot}) {
    add_peers(group, host, algorithm);
  }
  if (world_.rank() >= n) {
    group.as_chosen = nullptr;
    for (ProbeGroup::Forced& forced : group.all_reduce) forced.group = nullptr;
  }
  groups_.push_back(std::move(group));
}

void GpuProbeGroups::add_peers(ProbeGroup& group, Communicator& host, CommAlgorithm algorithm) {
  const int64_t all = options_.peer_capacity_bytes;
  PeerAllReduce::Options options{
      .hosts = {},
      .capacity_bytes = all,
      .deadline_s = options_.deadline_s,
      .sizes = algorithm == CommAlgorithm::one_shot ? PeerSizes{all, all} : PeerSizes{0, all}};
  options.hosts.reserve(host.group().world_ranks.size());
  for (const int rank : host.group().world_ranks) {
    options.hosts.push_back(world_.hosts()[static_cast<size_t>(rank)]);
  }
  PeerAllReduce::Made made = PeerAllReduce::make(queue_, host, options);
  if (!of_first_group(control_, made.peers != nullptr)) return;
  // By all ranks of the job, whether they are measured or not.
  NcclCommunicator& forced = make(host, /*messages=*/false);
  if (made.peers != nullptr) forced.set_peers(std::move(made.peers));
  group.all_reduce.push_back({.algorithm = algorithm, .group = &forced, .most_bytes = all});
}

}  // namespace testbed
