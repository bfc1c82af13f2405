#include "launch/cpu_rank.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "kernels/base/errors.hpp"
#include "kernels/cpu/probes.hpp"
#include "launch/rank_parts.hpp"
#include "runtime/commands/rank_plan.hpp"
#include "runtime/config/split.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {
namespace {

constexpr int64_t default_llc_bytes = int64_t{32} << 20;

// What the fastest of the run's products can reach: quantised weights are multiplied as integers.
double peak_of_products(CpuProcess& process,
                        const RunConfig& config,
                        const RunInputs& inputs,
                        const ShardPosition& position) {
  const DType compute = config.compute_dtype;
  const double peak = process.peak_flops(compute);
  if (compute != DType::BF16) return peak;
  const bool integers = multiplies_in_integers(planned_quantised_formats(
      *inputs.source, inputs.model, position, resident_weights(config), compute));
  return integers ? std::max(peak, process.peak_flops(DType::I8)) : peak;
}

// The process's name for top and benchmarks/start_up.py: until its first read loop a rank has only
// loaded.
class ProcessName {
 public:
  explicit ProcessName(const char* name) {
    prctl(PR_GET_NAME, usual_.data());
    prctl(PR_SET_NAME, name);
  }
  ~ProcessName() { prctl(PR_SET_NAME, usual_.data()); }
  ProcessName(const ProcessName&) = delete;
  ProcessName& operator=(const ProcessName&) = delete;

 private:
  std::array<char, 16> usual_{};
};

// TESTBED_ONE_SHOT_BYTES: fixed instead of measured, and without the norm, so that runs can be
// compared collective by collective.
std::optional<AllReduceSizes> fixed_sizes() {
  const char* text = std::getenv("TESTBED_ONE_SHOT_BYTES");  // NOLINT(concurrency-mt-unsafe)
  if (text == nullptr) return std::nullopt;
  char* end = nullptr;
  const int64_t n_bytes = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || n_bytes < 0) {
    throw ConfigError(fmt::format("TESTBED_ONE_SHOT_BYTES={}: not a number of bytes", text));
  }
  return AllReduceSizes{.one_shot_bytes = n_bytes, .fuses_norm = false};
}

}  // namespace

MachineInfo cpu_machine(const MpiWorld& world, CpuProcess& process, double peak_flops) {
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
      .peak_flops = share * peak_flops,
      .read_bandwidth_sample = [&process] { return process.read_bandwidth_sample(); },
      .environment = world.settings(),
      .libraries = {{"mpi", world.library()}, {"compiler", __VERSION__}}};
  return machine;
}

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

double CpuProcess::peak_flops(DType operands) {
  constexpr double seconds = 0.05;
  const auto [entry, is_new] = peaks_.try_emplace(operands, 0.0);
  if (is_new) entry->second = cpu::peak_flops(operands, seconds, *pool_, isa_);
  return entry->second;
}

// With the best instructions whatever TESTBED_ISA forces: what memory gives is no choice of ours.
double CpuProcess::read_bandwidth_sample() {
  constexpr double seconds = 0.03;
  const ProcessName name("read loop");
  if (read_buffer_.empty()) {
    // Together the host's ranks read eight times the last-level cache, and each at least four times
    // what one core could have of it to itself: a virtual machine may not show all there is.
    const int64_t llc_bytes = std::max(llc_bytes_, default_llc_bytes);
    const int64_t n_bytes = std::max(8 * llc_bytes / n_local_ranks_, 4 * default_llc_bytes);
    read_buffer_ = Tensor(DType::F32, {n_bytes / 4});
    std::fill_n(read_buffer_.as<float>(), read_buffer_.n_elements(), 1.0F);
  }
  return cpu::read_bandwidth(read_buffer_, seconds, *pool_, cpu::best_isa());
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
  if (const auto reason = why_places_lack_memory(*control_, "host " + world.host(), {planned})) {
    throw ConfigError(*reason + " (more ranks, --layers, or a smaller batch or context would fit)");
  }
  const std::optional<AllReduceSizes> sizes = fixed_sizes();
  tp_ = world.make_group(
      mesh.group(world.rank(), Axis::tp), Axis::tp, sizes.value_or(AllReduceSizes{}));
  cp_ = world.make_group(mesh.group(world.rank(), Axis::cp), Axis::cp);
  ep_ = world.make_group(mesh.group(world.rank(), Axis::ep), Axis::ep);
  pp_ = world.make_group(mesh.group(world.rank(), Axis::pp), Axis::pp);
  pp_tokens_ = world.make_host_group(mesh.group(world.rank(), Axis::pp), Axis::pp);
  const std::shared_ptr<Faults> faults = Faults::of(
      config.inject, world.rank(), {.seed = config.sampling.seed, .may_spin = process.may_spin()});
  if (faults != nullptr) {
    for (Communicator* group : {&*tp_, &*cp_, &*ep_, &*pp_, &*pp_tokens_}) {
      group->add_hooks(faults);
    }
  }
  const double slowdown = slowdown_of(world.faults(), faults);
  const auto make_device = [&process, slowdown](DType compute) -> std::unique_ptr<Device> {
    auto device = std::make_unique<CpuDevice>(process.pool(), process.isa(), compute);
    device->set_slowdown(slowdown);
    return device;
  };
  device_ = make_device(config.compute_dtype);
  ControlChannel& control = *control_;
  context_ = std::make_unique<RankContext>(RankContext{
      .config = config,
      .inputs = inputs,
      .mesh = mesh,
      .rank = world.rank(),
      .device = *device_,
      .make_device = make_device,
      .groups = {*tp_, *cp_, *ep_, *pp_, *tp_, *ep_, *pp_tokens_},
      .control = control,
      .machine = cpu_machine(
          world,
          process,
          peak_of_products(
              process, config, inputs, shard_position(config.parallel, mesh, world.rank()))),
      .planned = planned,
      .clock_estimate = clock_estimates(world, control),
      .transports =
          [this] {
            std::map<Axis, std::string> transports;
            for (const Communicator* group : {&*tp_, &*cp_, &*ep_, &*pp_}) {
              transports[group->group().axis] = group->transport();
            }
            return transports;
          },
      .host_transports = {{Axis::pp, std::string(pp_tokens_->transport())}}});
  MachineInfo& machine = context_->machine;
  machine.read_bandwidth_sample = slowed(machine.read_bandwidth_sample, slowdown);
  machine.deeds = deeds_of(faults);
  std::map<std::string, std::string>& told = machine.environment;
  if (tp_->size() > 1) {
    told["all-reduces"] = sizes ? fmt::format("one-shot to {} bytes (TESTBED_ONE_SHOT_BYTES)",
                                              sizes->one_shot_limit(tp_->size()))
                                : tp_->tune();
  }
  if (!world.exchange_within_host().empty()) told["within the host"] = world.exchange_within_host();
}

}  // namespace testbed
