#include "launch/probe_rank.hpp"

#include <algorithm>
#include <limits>

#include "kernels/base/errors.hpp"
#include "launch/cpu_rank.hpp"
#include "runtime/commands/probe.hpp"

namespace testbed {
namespace {

// The groups of 2, 4, 8 and all ranks, each as a run uses it and with either algorithm forced.
class ProbeGroups {
 public:
  explicit ProbeGroups(MpiWorld& world) {
    constexpr int64_t always = std::numeric_limits<int64_t>::max() / 4;
    std::vector<int> sizes;
    for (const int n : {2, 4, 8}) {
      if (n <= world.size()) sizes.push_back(n);
    }
    if (world.size() > 1 && sizes.back() != world.size()) sizes.push_back(world.size());
    for (const int n : sizes) {
      ProbeGroup group{.size = n, .as_chosen = make(world, n, {}), .all_reduce = {}};
      if (group.as_chosen != nullptr) group.as_chosen->tune();
      group.all_reduce.push_back({CommAlgorithm::one_shot,
                                  make(world, n, {.one_shot_bytes = always, .one_shot_ranks = n})});
      group.all_reduce.push_back({CommAlgorithm::two_shot, make(world, n, {.one_shot_bytes = -1})});
      groups_.push_back(std::move(group));
    }
  }
  const std::vector<ProbeGroup>& groups() const { return groups_; }

 private:
  Communicator* make(MpiWorld& world, int n, const AllReduceSizes& sizes) {
    if (world.rank() >= n) return nullptr;
    std::vector<int> ranks;
    ranks.reserve(static_cast<size_t>(n));
    for (int r = 0; r < n; ++r) ranks.push_back(r);
    return owned_.emplace_back(world.make_group(ranks, Axis::tp, sizes)).get();
  }
  std::vector<std::unique_ptr<Communicator>> owned_;
  std::vector<ProbeGroup> groups_;
};

}  // namespace

int probe_on_cpu(MpiWorld& world, const ProbeConfig& config) {
  const std::unique_ptr<CpuProcess> process =
      start_cpu_process(world, *world.make_control(), config.threads);
  world.set_waiting({.deadline_s = config.timeout_s, .may_spin = process->may_spin()});
  const std::unique_ptr<ControlChannel> control = world.make_control();
  ProbeGroups groups(world);
  CpuDevice device(process->pool(), process->isa(), config.compute_dtype);
  run_probe({.config = config,
             .device = device,
             .control = *control,
             .groups = groups.groups(),
             .peak_flops = process->peak_flops(config.compute_dtype),
             .f32_peak_flops = process->peak_flops(DType::F32),
             .read_bandwidth_sample = [&process] { return process->read_bandwidth_sample(); }});
  return static_cast<int>(ExitCode::ok);
}

}  // namespace testbed
