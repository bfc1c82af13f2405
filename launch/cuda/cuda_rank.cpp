#include "launch/cuda/cuda_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "kernels/base/errors.hpp"
#include "kernels/cuda/dram_counters.hpp"
#include "kernels/probes/cuda/bandwidth.hpp"
#include "launch/cuda/fixed_memory.hpp"
#include "launch/rank_parts.hpp"
#include "parallel/comm/nccl_proof.hpp"
#include "runtime/commands/rank_plan.hpp"
#include "runtime/config/split.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {
namespace {

constexpr Axis axes[] = {Axis::tp, Axis::cp, Axis::ep, Axis::pp};

bool sends_messages(Axis axis) { return axis == Axis::cp || axis == Axis::pp; }

// MachineInfo::count_dram. The work is done whether there are counters or not.
DeviceCounters count_dram(const std::function<void()>& work) {
  DeviceCounters counted;
  std::unique_ptr<DramCounters> dram;
  const auto attempt = [&](const auto& step) {
    if (counted.why_no_dram) return;
    try {
      step();
    } catch (const std::runtime_error& e) {
      counted.why_no_dram = e.what();
    }
  };
  attempt([&] {
    int device = 0;
    cuda::check(cudaGetDevice(&device), "cudaGetDevice");
    dram = std::make_unique<DramCounters>(device, DramCounters::Libraries{});
    dram->begin();
  });
  work();
  attempt([&] {
    const DramBytes bytes = dram->end();
    counted.dram_read_bytes = bytes.read;
    counted.dram_write_bytes = bytes.written;
  });
  return counted;
}

}  // namespace

double peak_flops(const DeviceSpec& spec, DType compute) {
  const auto peak = spec.peak_flops.find(compute == DType::F32 ? MathType::f32 : MathType::bf16);
  return peak == spec.peak_flops.end() ? 0.0 : peak->second;
}

MemoryRecord gpu_memory(const RunConfig& config,
                        const RunInputs& inputs,
                        const Mesh& mesh,
                        const CudaProcess& process) {
  // Most of NCCL's buffers, graphs and kernels' code come at first use and are not known before: a
  // sixteenth is left for them, 1 GiB at most.
  MemoryRecord planned = planned_memory(config, inputs, mesh, process.seat().rank);
  planned.workspace_bytes += fixed_gpu_bytes(mesh, cuda::read_buffer_bytes());
  const int64_t free = process.free_bytes();
  planned.capacity_bytes = free - std::min(free / 16, int64_t{1} << 30);
  return planned;
}

std::string use_peers(const MpiWorld& world,
                      Communicator& host,
                      NcclCommunicator& gpus,
                      cuda::Queue& queue,
                      double deadline_s,
                      int64_t capacity_bytes) {
  std::vector<std::string> hosts;
  for (const int rank : host.group().world_ranks) {
    hosts.push_back(world.hosts()[static_cast<size_t>(rank)]);
  }
  PeerAllReduce::Made made = PeerAllReduce::make(
      queue, host, {.hosts = hosts, .capacity_bytes = capacity_bytes, .deadline_s = deadline_s});
  if (made.peers == nullptr) return "NCCL: " + made.why_not;
  made.peers->tune([&gpus](TensorView x) { gpus.all_reduce(x); });
  std::string note = made.peers->description();
  gpus.set_peers(std::move(made.peers));
  return note;
}

std::function<void(TensorView, int)> bit_flipper(Device& device, cuda::Queue& queue) {
  return [&device, &queue](TensorView element, int bit) {
    const Tensor here(element.dtype(), {1});
    queue.synchronize();
    device.download(element, here);
    flip_bit(here, bit);
    device.upload(here, element);
  };
}

CudaRank::CudaRank(MpiWorld& world,
                   CudaProcess& process,
                   const RunConfig& config,
                   const RunInputs& inputs)
    : world_(world), process_(process) {
  const Mesh mesh = resolve_mesh(config.parallel, world.size());
  // While the host waits for other hosts its GPU may fail, too.
  world.set_waiting({.deadline_s = config.timeout_s,
                     .may_spin = world.n_local_ranks() <= world.n_usable_cores(),
                     .look = [&queue = process.streams()->queue](double) { queue.look(); }});
  control_ = world.make_control();
  const MemoryRecord planned = gpu_memory(config, inputs, mesh, process);
  const std::string place =
      fmt::format("GPU {} of host {}", process.seat().pci_bus_id, world.host());
  if (const auto reason = why_places_lack_memory(*control_, place, {planned})) {
    throw ConfigError(*reason + " (more GPUs, --layers, or a smaller batch or context would fit)");
  }

  CudaStreams& streams = *process.streams();
  nccl_ =
      std::make_unique<NcclWorld>(world, *control_, streams.queue, streams.clock, config.timeout_s);
  for (const Axis axis : axes) groups_[axis] = make_group(world, mesh, axis, sends_messages(axis));
  Group& tp = groups_.at(Axis::tp);
  if (tp.host->size() > 1) {
    peers_note_ = use_peers(world, *tp.host, *tp.gpus, streams.queue, config.timeout_s);
  }
  const std::shared_ptr<Faults> faults = add_faults(world, config);

  // Faults are the host's doing: a graph would leave them out. On all ranks, as they capture
  // together, whomever a fault concerns.
  const CudaDevice::Graphs graphs = config.cuda_graphs && config.inject.empty()
                                        ? CudaDevice::Graphs::capture
                                        : CudaDevice::Graphs::never;
  const double slowdown = slowdown_of(world.faults(), faults);
  const auto make_device = [&process, graphs, slowdown](DType compute) -> std::unique_ptr<Device> {
    auto device =
        std::make_unique<CudaDevice>(process.streams(), compute, process.description(), graphs);
    device->set_slowdown(slowdown);
    return device;
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
                  .groups = {*tp.gpus,
                             *groups_.at(Axis::cp).gpus,
                             *groups_.at(Axis::ep).gpus,
                             *groups_.at(Axis::pp).gpus,
                             *tp.host,
                             *groups_.at(Axis::ep).host,
                             *groups_.at(Axis::pp).host},
                  .control = control,
                  .machine = machine_info(world, config),
                  .planned = planned,
                  .clock_estimate = clock_estimates(world, control),
                  .transports =
                      [this] {
                        prove_links();
                        std::map<Axis, std::string> transports;
                        for (const auto& [axis, group] : groups_) {
                          transports[axis] = group.gpus->transport();
                        }
                        return transports;
                      },
                  .host_transports = {},
                  .protocol_of = [this](const CommRecord& comm) { return protocol_of(comm); }});
  MachineInfo& machine = context_->machine;
  machine.read_bandwidth_sample = slowed(machine.read_bandwidth_sample, slowdown);
  machine.deeds = deeds_of(faults);
  for (const auto& [axis, group] : groups_) {
    context_->host_transports[axis] = group.host->transport();
  }
}

CudaRank::~CudaRank() {
  MpiWaiting waiting = world_.waiting();
  waiting.look = {};  // the queue may go
  world_.set_waiting(waiting);
}

CudaRank::Group CudaRank::make_group(MpiWorld& world, const Mesh& mesh, Axis axis, bool messages) {
  Group group;
  // By the device's clock, as all else: while the host waits for others its GPU may be at work.
  group.host =
      world.make_host_group(mesh.group(world.rank(), axis), axis, process_.streams()->clock);
  group.gpus = nccl_->make_group(*group.host, messages);
  return group;
}

// After what is measured of the groups: a fault there would be taken for what they are like.
std::shared_ptr<Faults> CudaRank::add_faults(MpiWorld& world, const RunConfig& config) {
  cuda::Queue& queue = process_.streams()->queue;
  std::shared_ptr<Faults> faults = Faults::of(config.inject,
                                              world.rank(),
                                              {.seed = config.sampling.seed,
                                               .may_spin = world.waiting().may_spin,
                                               .synchronize = [&queue] { queue.synchronize(); },
                                               .flip_on_device = bit_flipper(*device_, queue)});
  for (auto& [axis, group] : groups_) {
    group.gpus->set_row(&world.board().mine());
    if (world.faults() != nullptr) group.gpus->add_hooks(world.faults());
    if (faults == nullptr) continue;
    group.gpus->add_hooks(faults);
    group.host->add_hooks(faults);
  }
  return faults;
}

MachineInfo CudaRank::machine_info(const MpiWorld& world, const RunConfig& config) {
  MachineInfo machine{
      .host = world.host(),
      .memory_domain = fmt::format("{} GPU {}", world.host(), process_.seat().pci_bus_id),
      .binding = process_.binding().cores,
      .ranks_on_host = world.n_local_ranks(),
      .threads = 1,
      .cores_on_host = world.n_usable_cores(),
      .llc_bytes = process_.spec().chip.l2_bytes,
      .peak_flops = testbed::peak_flops(process_.spec(), config.compute_dtype),
      .read_bandwidth_sample = [this] { return read_bandwidth_sample(); },
      .labels = process_.labels(),
      .environment = world.settings(),
      .libraries = process_.libraries()};
  machine.libraries["mpi"] = world.library();
  machine.libraries["compiler"] = __VERSION__;
  for (const auto& [name, value] : process_.environment()) machine.environment[name] = value;
  if (process_.nvml()) {
    counters_.emplace(*process_.nvml());
    machine.begin_counters = [this] { begin_counters(); };
    machine.end_counters = [this] { return end_counters(); };
  }
  if (config.dram_counters) {
    machine.count_dram = count_dram;
  }
  if (!peers_note_.empty()) machine.environment["small all-reduces"] = peers_note_;
  return machine;
}

void CudaRank::begin_counters() {
  ports_at_begin_ = infiniband_bytes();
  counters_->begin();
}

DeviceCounters CudaRank::end_counters() {
  DeviceCounters counters = counters_->end();
  if (const auto ports = between(ports_at_begin_, infiniband_bytes())) {
    counters.ib_tx_bytes = ports->sent;
    counters.ib_rx_bytes = ports->received;
  }
  return counters;
}

double CudaRank::read_bandwidth_sample() {
  if (read_buffer_.empty()) {
    read_buffer_ = cuda::device_tensor(DType::I32, {cuda::read_buffer_bytes() / 4});
  }
  return cuda::read_bandwidth_sample(process_.streams()->queue, read_buffer_);
}

// The groups of an axis are alike: of another rank's, what this rank's did.
NcclProtocol CudaRank::protocol_of(const CommRecord& comm) const {
  const auto group = groups_.find(comm.axis);
  if (group == groups_.end()) return NcclProtocol::unknown;
  const NcclChoice* choice =
      find_choice(group->second.choices, comm.op, comm.payload_bytes, comm.group_size);
  return choice == nullptr ? NcclProtocol::unknown : choice->protocol;
}

void CudaRank::prove_links() {
  if (proven_) return;
  proven_ = true;
  std::optional<std::string> error;
  const std::optional<NcclLogReport> log = read_nccl_log(process_.nccl_log());
  for (auto& [axis, group] : groups_) {
    if (group.gpus->size() == 1) continue;
    LinkProof proof = testbed::prove_links(
        log, group.gpus->handles(), *group.host, p2p_link(process_.topology()), process_.layout());
    if (!error) error = proof.why_not;
    group.gpus->set_transport(proof.transport);
    group.choices = std::move(proof.choices);
    group.gpus->set_algorithms([&of = group](CommOp op, int64_t n_bytes) {
      const NcclChoice* choice = find_choice(of.choices, op, n_bytes, of.host->size());
      return choice == nullptr ? CommAlgorithm::nccl : choice->algorithm;
    });
  }
  process_.quieten_nccl();
  control_->agree(error);
}

}  // namespace testbed
