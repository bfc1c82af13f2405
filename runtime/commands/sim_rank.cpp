#include "runtime/commands/sim_rank.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace testbed {
namespace {

int index_in(const SimGroup& group, int rank) {
  const std::vector<int>& ranks = group.info.world_ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

std::string host_name(const SimNetwork& network, int rank) {
  return "node" + std::to_string(network.node_of(rank));
}

MachineInfo machine_of(const SimJob& job, int rank) {
  const NodeSpec& node = job.network.cluster().node;
  const DeviceSpec& device = job.network.cluster().device;
  const bool shared = node.shared_memory_bytes_per_s > 0.0;
  const std::string host = host_name(job.network, rank);
  // As a read loop of all ranks at once finds it.
  double bytes_per_s = device.memory_bytes_per_s;
  if (shared) {
    bytes_per_s =
        std::min(bytes_per_s,
                 node.shared_memory_bytes_per_s / std::min(job.mesh.world_size(), node.n_devices));
  }
  return {.host = host,
          .memory_domain = shared ? host : fmt::format("device{}", rank),
          .binding = fmt::format("device {}", rank % node.n_devices),
          .peak_flops = device.peak_flops.at(math_of(device, job.config.compute_dtype)),
          .read_bandwidth_sample = [bytes_per_s] { return bytes_per_s; }};
}

// The delay of an injection, on the rank's clock.
class SimDelay final : public CommHooks {
 public:
  SimDelay(const Injection& delay, SimClock& clock) : delay_(delay), clock_(clock) {}
  void before(const CommRecord& record, const GroupInfo& /*group*/) override {
    if (record.op != CommOp::all_reduce || ++n_calls_ % delay_.every != 0) return;
    clock_.add(static_cast<double>(delay_.delay_us) * 1e-6);
  }

 private:
  Injection delay_;
  SimClock& clock_;
  int64_t n_calls_ = 0;
};

}  // namespace

SimRank::SimRank(const SimJob& job,
                 int rank,
                 const std::map<Axis, SimGroup*>& groups,
                 const MemoryRecord& planned)
    : control_(job.hub, rank, host_name(job.network, rank), clock_),
      tp_(communicator(job, rank, *groups.at(Axis::tp), 0)),
      cp_(communicator(job, rank, *groups.at(Axis::cp), 3)),
      ep_(communicator(job, rank, *groups.at(Axis::ep), 4)),
      pp_(communicator(job, rank, *groups.at(Axis::pp), 1)),
      pp_tokens_(communicator(job, rank, *groups.at(Axis::pp), 2)),
      device_(job.network.cluster().device,
              clock_,
              job.config.compute_dtype,
              job.config.sampling.seed ^ static_cast<uint64_t>(rank)),
      context_{.config = job.config,
               .inputs = job.inputs,
               .mesh = job.mesh,
               .rank = rank,
               .device = device_,
               .make_device = {},
               .groups = {tp_, cp_, ep_, pp_, tp_, ep_, pp_tokens_},
               .control = control_,
               .machine = machine_of(job, rank),
               .planned = planned,
               .clock_estimate = [] { return ClockEstimate{}; },
               .transports = [transports = job.transports] { return transports; },
               .virtual_time = true} {
  for (const Injection& delay : job.config.inject) {
    if (delay.concerns(rank)) tp_.add_hooks(std::make_shared<SimDelay>(delay, clock_));
  }
}

SimCommunicator SimRank::communicator(const SimJob& job, int rank, SimGroup& group, int channel) {
  return {job.network, group, index_in(group, rank), clock_, channel};
}

}  // namespace testbed
