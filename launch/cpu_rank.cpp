#include "launch/cpu_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "kernels/base/errors.hpp"
#include "kernels/cpu/probes.hpp"
#include "parallel/comm/clock_sync.hpp"
#include "parallel/comm/inject.hpp"
#include "runtime/commands/rank_plan.hpp"
#include "runtime/config/split.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {
namespace {

constexpr int64_t default_llc_bytes = int64_t{32} << 20;

// The delays that concern this rank, one after the other.
std::function<void()> delays_of(const std::vector<DelayInjection>& delays,
                                int rank,
                                bool may_spin) {
  std::vector<std::function<void()>> mine;
  for (const DelayInjection& delay : delays) {
    if (delay.rank == rank) mine.push_back(delay_hook(delay.delay_us, delay.every, may_spin));
  }
  if (mine.empty()) return {};
  return [mine] {
    for (const std::function<void()>& delay : mine) delay();
  };
}

MachineInfo machine_info(const MpiWorld& world, CpuProcess& process, DType compute) {
  const Binding& binding = process.binding();
  // Ranks that share cores share their arithmetic.
  const double share =
      std::min(1.0, static_cast<double>(world.n_usable_cores()) / world.n_local_ranks());
  MachineInfo machine{
      .host = world.host(),
      .memory_domain = world.host(),
      .binding = binding.cores,
      .ranks_on_host = world.n_local_ranks(),
      .threads = process.pool()->n_threads(),
      .cores_on_host = world.n_usable_cores(),
      .llc_bytes = process.llc_bytes(),
      .peak_flops = share * process.peak_flops(compute),
      .read_bandwidth_sample = [&process] { return process.read_bandwidth_sample(); },
      .environment = world.settings(),
      .libraries = {{"mpi", world.library()}, {"compiler", __VERSION__}}};
  return machine;
}

}  // namespace

MemoryRecord cpu_memory(const RunConfig& config,
                        const RunInputs& inputs,
                        const Mesh& mesh,
                        int rank) {
  MemoryRecord planned = planned_memory(config, inputs, mesh, rank);
  planned.capacity_bytes = host_memory_bytes();
  return planned;
}

CpuProcess::CpuProcess(const MpiWorld& world, std::optional<int> threads)
    : n_local_ranks_(world.n_local_ranks()),
      binding_(bind_rank(world.local_rank(), n_local_ranks_)),
      may_spin_(n_local_ranks_ <= world.n_usable_cores()),
      isa_(cpu::choose_isa()),
      llc_bytes_(cpu::last_level_cache_bytes()) {
  // Ranks whose masks overlap share those cores.
  const int share = std::max(1, world.n_usable_cores() / n_local_ranks_);
  const int n_threads = threads.value_or(std::min(binding_.n_cores, share));
  if (n_threads > binding_.n_cores) {
    warning_ = fmt::format("{} threads a rank on {} core{} ({}): they will share them",
                           n_threads,
                           binding_.n_cores,
                           binding_.n_cores == 1 ? "" : "s",
                           binding_.cores);
    may_spin_ = false;
  }
  pool_ = std::make_shared<cpu::ThreadPool>(n_threads, may_spin_);
}

double CpuProcess::peak_flops(DType compute) {
  constexpr double seconds = 0.05;
  const auto [entry, is_new] = peaks_.try_emplace(compute, 0.0);
  if (is_new) entry->second = cpu::peak_flops(compute, seconds, *pool_, isa_);
  return entry->second;
}

double CpuProcess::read_bandwidth_sample() {
  constexpr double seconds = 0.03;
  if (read_buffer_.empty()) {
    // Together the host's ranks read eight times the last-level cache, and each at least four times
    // what one core could have of it to itself: a virtual machine may not show all there is.
    const int64_t llc_bytes = std::max(llc_bytes_, default_llc_bytes);
    const int64_t n_bytes = std::max(8 * llc_bytes / n_local_ranks_, 4 * default_llc_bytes);
    read_buffer_ = Tensor(DType::F32, {n_bytes / 4});
    std::fill_n(read_buffer_.as<float>(), read_buffer_.n_elements(), 1.0F);
  }
  return cpu::read_bandwidth(read_buffer_, seconds, *pool_, isa_);
}

std::unique_ptr<CpuProcess> start_cpu_process(const MpiWorld& world,
                                              ControlChannel& control,
                                              std::optional<int> threads) {
  std::unique_ptr<CpuProcess> process;
  std::optional<std::string> error;
  try {
    process = std::make_unique<CpuProcess>(world, threads);
  } catch (const Error& e) {
    error = e.what();
  }
  control.agree_on_mistake(error);
  if (world.rank() == 0 && !process->warning().empty()) {
    fmt::print(stderr, "testbed: warning: {}\n", process->warning());
  }
  return process;
}

CpuRank::CpuRank(MpiWorld& world,
                 CpuProcess& process,
                 const RunConfig& config,
                 const RunInputs& inputs) {
  const Mesh mesh = resolve_mesh(config.parallel, world.size());
  world.set_waiting({.deadline_s = config.timeout_s, .may_spin = process.may_spin()});
  control_ = world.make_control();
  const MemoryRecord planned = cpu_memory(config, inputs, mesh, world.rank());
  if (const auto reason = why_hosts_lack_memory(*control_, world.host(), {planned})) {
    throw ConfigError(*reason + " (more ranks, --layers, or a smaller batch or context would fit)");
  }
  tp_ = world.make_group(mesh.group(world.rank(), Axis::tp), Axis::tp);
  cp_ = world.make_group(mesh.group(world.rank(), Axis::cp), Axis::cp);
  ep_ = world.make_group(mesh.group(world.rank(), Axis::ep), Axis::ep);
  pp_ = world.make_group(mesh.group(world.rank(), Axis::pp), Axis::pp);
  pp_tokens_ = world.make_group(mesh.group(world.rank(), Axis::pp), Axis::pp);
  tp_->set_before_all_reduce(delays_of(config.inject, world.rank(), process.may_spin()));

  const auto make_device = [&process](DType compute) -> std::unique_ptr<Device> {
    return std::make_unique<CpuDevice>(process.pool(), process.isa(), compute);
  };
  device_ = make_device(config.compute_dtype);
  ControlChannel& control = *control_;
  context_ = std::make_unique<RankContext>(
      RankContext{.config = config,
                  .inputs = inputs,
                  .mesh = mesh,
                  .rank = world.rank(),
                  .device = *device_,
                  .make_device = make_device,
                  .groups = {*tp_, *cp_, *ep_, *pp_, *pp_tokens_},
                  .control = control,
                  .machine = machine_info(world, process, config.compute_dtype),
                  .planned = planned,
                  .clock_estimate =
                      [&control, hosts = world.hosts()] {
                        const ClockOffset offset = estimate_clock_offset(control, hosts);
                        return ClockEstimate{offset.offset_ns, offset.error_ns};
                      },
                  .transports = {{Axis::tp, std::string(tp_->transport())},
                                 {Axis::cp, std::string(cp_->transport())},
                                 {Axis::ep, std::string(ep_->transport())},
                                 {Axis::pp, std::string(pp_->transport())}}});
}

}  // namespace testbed
