// `testbed accept` on one GPU per rank: its groups over NCCL and what is known of the GPUs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "kernels/base/errors.hpp"
#include "kernels/probes/cuda/bandwidth.hpp"
#include "launch/accept_rank.hpp"
#include "launch/cuda/cuda_rank.hpp"
#include "launch/gpu.hpp"
#include "launch/host_facts.hpp"
#include "launch/rank_parts.hpp"
#include "runtime/commands/accept.hpp"
#include "runtime/config/split.hpp"

namespace testbed {
namespace {

// What NCCL takes for an operation, as its log says once it has been done; only the log of the
// group's rank 0 does.
class LoggedAlgorithms {
 public:
  LoggedAlgorithms(std::filesystem::path log, std::vector<uint64_t> handles, int n_ranks)
      : log_(std::move(log)), handles_(std::move(handles)), n_ranks_(n_ranks) {}

  CommAlgorithm operator()(CommOp op, int64_t n_bytes) {
    Entry& entry = entries_[{op, n_bytes}];
    // The first call has not been done when it is asked for; then the log is there or never.
    constexpr int most_looks = 3;
    if (entry.algorithm == CommAlgorithm::nccl && entry.n_looks++ < most_looks) {
      entry.algorithm = look(op, n_bytes);
    }
    return entry.algorithm;
  }

 private:
  struct Entry {
    CommAlgorithm algorithm = CommAlgorithm::nccl;
    int n_looks = 0;
  };
  CommAlgorithm look(CommOp op, int64_t n_bytes) const {
    const std::optional<NcclLogReport> report = read_nccl_log(log_);
    if (!report) return CommAlgorithm::nccl;
    for (const uint64_t handle : handles_) {
      const LoggedCommunicator* logged = report->communicator(handle);
      if (logged == nullptr) continue;
      const NcclChoice* choice = find_choice(logged->choices, op, n_bytes, n_ranks_);
      if (choice != nullptr) return choice->algorithm;
    }
    return CommAlgorithm::nccl;
  }

  std::filesystem::path log_;
  std::vector<uint64_t> handles_;
  int n_ranks_;
  std::map<std::pair<CommOp, int64_t>, Entry> entries_;
};

// Groups of GPUs as a run has them. Their twins between the hosts live as long as this.
class GpuGroups {
 public:
  GpuGroups(MpiWorld& world, CudaProcess& process, NcclWorld& nccl, double deadline_s)
      : world_(world), process_(process), nccl_(nccl), deadline_s_(deadline_s) {}

  std::unique_ptr<Communicator> make(const std::vector<int>& world_ranks, Axis axis) {
    CudaStreams& streams = *process_.streams();
    Communicator& host =
        *hosts_.emplace_back(world_.make_host_group(world_ranks, axis, streams.clock));
    const bool everyone = host.size() == world_.size();
    std::unique_ptr<NcclCommunicator> gpus =
        everyone ? nccl_.make_group(host, /*messages=*/true) : nccl_.make_uneven_group(host);
    if (host.size() > 1) {
      use_peers(world_, host, *gpus, streams.queue, deadline_s_);
      gpus->set_algorithms(LoggedAlgorithms(process_.nccl_log(), gpus->handles(), host.size()));
    }
    gpus->set_row(&world_.board().mine());
    if (world_.faults() != nullptr) gpus->add_hooks(world_.faults());
    return gpus;
  }

 private:
  MpiWorld& world_;
  CudaProcess& process_;
  NcclWorld& nccl_;
  double deadline_s_;
  std::vector<std::unique_ptr<Communicator>> hosts_;
};

template <typename T>
void put(Facts& facts, const char* name, const std::optional<T>& value) {
  if (value) facts[name] = fmt::format("{}", *value);
}

// Of this rank's GPU, now.
void add_device_facts(const CudaProcess& process, Facts& facts) {
  const GpuSeat& seat = process.seat();
  facts["device.pci"] = seat.pci_bus_id;
  facts["device.uuid"] = seat.uuid;
  facts["device.count"] = fmt::format("{}", seat.n_visible);
  facts["device.memory_free_gb"] =
      fmt::format("{:.3f}", static_cast<double>(process.free_bytes()) * 1e-9);
  facts["device.memory_gb"] =
      fmt::format("{:.3f}", static_cast<double>(process.spec().memory_bytes) * 1e-9);
  if (const std::string nics = nearest_nics(seat.pci_bus_id); !nics.empty()) {
    facts["device.nics"] = nics;
  }
  facts["device.name"] = process.spec().name;
  if (!process.nvml()) return;
  const NvmlDescription is = process.nvml()->describe();
  const NvmlSample now = process.nvml()->sample();
  if (is.name) facts["device.name"] = *is.name;
  if (is.ecc) facts["device.ecc"] = *is.ecc ? "on" : "off";
  put(facts, "device.max_clock_mhz", is.max_sm_clock_mhz);
  put(facts, "device.clock_mhz", now.sm_clock_mhz);
  put(facts, "device.power_limit_mw", is.power_limit_mw);
  put(facts, "device.pcie_generation", is.max_pcie_generation);
  put(facts, "device.pcie_lanes", is.max_pcie_width);
  if (is.links) facts["device.nvlinks"] = fmt::format("{}", is.links->size());
  put(facts, "device.ecc_uncorrected", now.ecc_uncorrected);
  // What holds the clock down.
  if (now.throttle_reasons) {
    facts["device.throttle_reasons"] =
        fmt::format("{}", fmt::join(throttle_reason_names(*now.throttle_reasons), ", "));
  }
}

Facts all_facts(const MpiWorld& world, const CudaProcess& process) {
  Facts facts = host_facts(world);
  const std::map<std::string, std::string> known = process.environment();
  if (const auto driver = known.find("driver"); driver != known.end()) {
    facts["driver"] = driver->second;
  }
  for (const auto& [name, version] : process.libraries()) facts[name] = version;
  facts["rank.binding"] = process.binding().cores;
  add_device_facts(process, facts);
  return facts;
}

MachineInfo gpu_machine(const MpiWorld& world, const CudaProcess& process, DType compute) {
  MachineInfo machine{
      .host = world.host(),
      .memory_domain = fmt::format("{} GPU {}", world.host(), process.seat().pci_bus_id),
      .binding = process.binding().cores,
      .ranks_on_host = world.n_local_ranks(),
      .threads = 1,
      .cores_on_host = world.n_usable_cores(),
      .llc_bytes = process.spec().chip.l2_bytes,
      .peak_flops = peak_flops(process.spec(), compute),
      .labels = process.labels(),
      .environment = process.environment(),
      .libraries = process.libraries()};
  machine.environment.merge(world.settings());
  machine.libraries["mpi"] = world.library();
  machine.libraries["compiler"] = __VERSION__;
  return machine;
}

}  // namespace

int accept_on_gpu(MpiWorld& world,
                  const AcceptConfig& config,
                  const AcceptanceProfile& profile,
                  const AcceptWork& work) {
  const std::unique_ptr<ControlChannel> starting = world.make_control();
  CudaProcess process(
      world, *starting, {.allow_shared_gpu = config.allow_shared_gpu, .layout = config.layout});
  CudaStreams& streams = *process.streams();
  world.set_waiting({.deadline_s = config.timeout_s,
                     .may_spin = world.n_local_ranks() <= world.n_usable_cores(),
                     .look = [&streams](double) { streams.queue.look(); }});
  const std::unique_ptr<ControlChannel> control = world.make_control();
  JudgingChannel judging(world);
  const std::unique_ptr<Watchdog> watchdog = make_watchdog(world);
  NcclWorld nccl(world, *control, streams.queue, streams.clock, config.timeout_s);
  CudaDevice device(process.streams(), config.compute_dtype, process.description());
  install_faults(world,
                 config,
                 {.may_spin = world.waiting().may_spin,
                  .synchronize = [&streams] { streams.queue.synchronize(); },
                  .flip_on_device = bit_flipper(device, streams.queue)});
  const double slowdown = slowdown_of(world.faults(), nullptr);
  device.set_slowdown(slowdown);
  const Tensor buffer = cuda::device_tensor(DType::I32, {cuda::read_buffer_bytes() / 4});
  MachineInfo machine = gpu_machine(world, process, config.compute_dtype);
  machine.read_bandwidth_sample =
      slowed([&] { return cuda::read_bandwidth_sample(streams.queue, buffer); }, slowdown);
  GpuGroups groups(world, process, nccl, config.timeout_s);

  const auto with_rank = [&](const RunConfig& run, const auto& use) {
    const Mesh mesh = resolve_mesh(run.parallel, world.size());
    const RunInputs inputs = open_inputs(run, mesh, *control);
    const CudaRank rank(world, process, run, inputs);
    use(rank.context());
  };
  return work(
      {.config = config,
       .profile = profile,
       .rank = world.rank(),
       .size = world.size(),
       .hosts = world.hosts(),
       .control = *control,
       .judging = judging.channel(),
       .set_patience = judging.set_patience(),
       .watchdog = *watchdog,
       .awaited_message = [&world] { return world.board().awaited_message(); },
       .given_message = [&world] { return world.board().mine().given(); },
       .whereabouts =
           [&world](const std::vector<int>& ranks) { return world.board().whereabouts(ranks); },
       .device = device,
       .machine = std::move(machine),
       .facts = [&] { return all_facts(world, process); },
       .make_group = [&groups](const std::vector<int>& ranks,
                               Axis axis) { return groups.make(ranks, axis); },
       .with_rank = with_rank});
}

}  // namespace testbed
