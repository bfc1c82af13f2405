#include "runtime/commands/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <set>

#include "kernels/base/errors.hpp"
#include "parallel/comm/sim_communicator.hpp"
#include "parallel/comm/sim_control.hpp"
#include "runtime/commands/expected_collectives.hpp"
#include "runtime/commands/run.hpp"
#include "runtime/commands/sim_fit.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"

namespace testbed {
namespace {

// A gigabyte in 0.1 us: nothing, and still more than the resolution of virtual time.
constexpr double free_bytes_per_s = 1e16;
constexpr double endless_bytes_per_s = 1e24;  // of memory; finite, so that ratios stay numbers

// Everything that one simulated rank is given.
class SimRank {
 public:
  SimRank(const RunConfig& config,
          const RunInputs& inputs,
          const Mesh& mesh,
          const DeviceSpec& device,
          SimNetwork& network,
          SimControlHub& hub,
          int rank,
          std::array<SimGroup*, 3> groups,
          const MemoryRecord& planned)
      : control_(hub, rank, host_name(network, rank), clock_),
        tp_(network, *groups[0], index_in(*groups[0], rank), clock_, 0),
        pp_(network, *groups[1], index_in(*groups[1], rank), clock_, 1),
        pp_tokens_(network, *groups[2], index_in(*groups[2], rank), clock_, 2),
        device_(device,
                clock_,
                config.compute_dtype,
                config.sampling.seed ^ static_cast<uint64_t>(rank)),
        context_{.config = config,
                 .inputs = inputs,
                 .mesh = mesh,
                 .rank = rank,
                 .device = device_,
                 .make_device = {},
                 .groups = {tp_, pp_, pp_tokens_},
                 .control = control_,
                 .machine = machine(network, device, config.compute_dtype, mesh, rank),
                 .planned = planned,
                 .clock_estimate = [] { return ClockEstimate{}; },
                 .transports = network.transports(),
                 .virtual_time = true} {
    for (const DelayInjection& delay : config.inject) {
      if (delay.rank == rank) tp_.set_before_all_reduce(delay_of(delay));
    }
  }
  SimRank(const SimRank&) = delete;
  SimRank& operator=(const SimRank&) = delete;
  const RankContext& context() const { return context_; }

 private:
  static int index_in(const SimGroup& group, int rank) {
    const std::vector<int>& ranks = group.info.world_ranks;
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  static std::string host_name(const SimNetwork& network, int rank) {
    return "node" + std::to_string(network.node_of(rank));
  }
  static MachineInfo machine(const SimNetwork& network,
                             const DeviceSpec& device,
                             DType compute,
                             const Mesh& mesh,
                             int rank) {
    const NodeSpec& node = network.cluster().node;
    const bool shared = node.shared_memory_bytes_per_s > 0.0;
    const std::string host = host_name(network, rank);
    // As a read loop of all ranks at once finds it.
    double bytes_per_s = device.memory_bytes_per_s;
    if (shared) {
      bytes_per_s =
          std::min(bytes_per_s,
                   node.shared_memory_bytes_per_s / std::min(mesh.world_size(), node.n_devices));
    }
    return {.host = host,
            .memory_domain = shared ? host : fmt::format("device{}", rank),
            .binding = fmt::format("device {}", rank % node.n_devices),
            .peak_flops = device.peak_flops.at(math_of(device, compute)),
            .read_bandwidth_sample = [bytes_per_s] { return bytes_per_s; }};
  }
  std::function<void()> delay_of(const DelayInjection& delay) {
    return [this, delay, n_calls = int64_t{0}]() mutable {
      if (++n_calls % delay.every == 0) clock_.add(static_cast<double>(delay.delay_us) * 1e-6);
    };
  }

  SimClock clock_;
  SimControl control_;
  SimCommunicator tp_;
  SimCommunicator pp_;
  SimCommunicator pp_tokens_;
  SimDevice device_;
  RankContext context_;
};

// One machine and one configuration. What was not expected of the collectives costs an attempt.
class Simulation {
 public:
  Simulation(const RunConfig& config,
             const RunInputs& inputs,
             const Mesh& mesh,
             const ClusterSpec& cluster,
             SimNetworkOptions options)
      : config_(config),
        inputs_(inputs),
        mesh_(mesh),
        cluster_(cluster),
        options_(options),
        times_(cluster,
               config.cluster.algorithm ? algorithm_by_name(*config.cluster.algorithm)
                                        : std::nullopt) {}

  RunOutcome run(const std::vector<MemoryRecord>& planned) {
    times_.compute(expected_collectives(config_, inputs_, mesh_, cluster_));
    while (true) {
      const std::set<CollectiveKey> missing = attempt(planned);
      if (missing.empty()) return std::move(*outcome_);
      times_.compute({missing.begin(), missing.end()});
    }
  }

 private:
  // The collectives whose times stopped it; empty: outcome_ is there.
  std::set<CollectiveKey> attempt(const std::vector<MemoryRecord>& planned) {
    const std::unique_ptr<VirtualTime> time = make_virtual_time(cluster_);
    SimNetwork network(*time, cluster_, times_, options_);
    SimControlHub hub(*time, mesh_.world_size(), options_.no_waiting);
    std::vector<std::unique_ptr<SimRank>> ranks = make_ranks(network, hub, planned);
    std::exception_ptr error;
    std::vector<std::function<void()>> actors;
    actors.reserve(ranks.size());
    for (const std::unique_ptr<SimRank>& rank : ranks) {
      actors.emplace_back([this, &error, context = &rank->context()] {
        try {
          if (auto outcome = run_rank(*context)) outcome_ = std::move(outcome);
        } catch (const TimesMissing&) {
        } catch (const std::exception&) {
          if (!error) error = std::current_exception();
        }
      });
    }
    const std::vector<size_t> left = time->run(actors);
    if (error) std::rethrow_exception(error);
    if (network.missing().empty() && !left.empty()) throw JobError(hang(left));
    return network.missing();
  }

  std::vector<std::unique_ptr<SimRank>> make_ranks(SimNetwork& network,
                                                   SimControlHub& hub,
                                                   const std::vector<MemoryRecord>& planned) {
    const int n = mesh_.world_size();
    std::map<std::pair<Axis, int>, SimGroup*> groups;  // by axis and first rank
    const auto group_of = [&](int rank, Axis axis) {
      const std::vector<int> members = mesh_.group(rank, axis);
      SimGroup*& group = groups[{axis, members.front()}];
      if (group == nullptr) group = &network.make_group(members, axis);
      return group;
    };
    std::vector<std::unique_ptr<SimRank>> ranks;
    ranks.reserve(static_cast<size_t>(n));
    for (int rank = 0; rank < n; ++rank) {
      SimGroup* const tp = group_of(rank, Axis::tp);
      SimGroup* const pp = group_of(rank, Axis::pp);
      ranks.push_back(std::make_unique<SimRank>(config_,
                                                inputs_,
                                                mesh_,
                                                cluster_.device,
                                                network,
                                                hub,
                                                rank,
                                                std::array<SimGroup*, 3>{tp, pp, pp},
                                                planned[static_cast<size_t>(rank)]));
      const std::vector<int>& stages = pp->info.world_ranks;
      for (size_t s = 0; s < stages.size(); ++s) {  // the last one sends ids to the first
        network.expect_messages(stages[s], stages[(s + 1) % stages.size()]);
      }
    }
    network.find_exclusive_groups();
    return ranks;
  }

  std::string hang(const std::vector<size_t>& left) const {
    std::string text = fmt::format(
        "{} of {} simulated ranks hang, each waiting for what will not "
        "come:",
        left.size(),
        mesh_.world_size());
    constexpr size_t most_named = 16;
    for (size_t i = 0; i < std::min(left.size(), most_named); ++i) {
      const Coordinates c = mesh_.coordinates(static_cast<int>(left[i]));
      text += fmt::format(" rank {} (tp {}, pp {}, dp {})", left[i], c.tp, c.pp, c.dp);
    }
    return left.size() > most_named ? text + " ..." : text;
  }

  const RunConfig& config_;
  const RunInputs& inputs_;
  Mesh mesh_;
  ClusterSpec cluster_;
  SimNetworkOptions options_;
  CollectiveTimes times_;
  std::optional<RunOutcome> outcome_;
};

void remove_latency(LinkTiming& timing) {
  for (auto& [name, protocols] : timing.of) {
    for (ProtocolTiming& protocol : protocols) {
      protocol.start_s = protocol.step_s = protocol.fill_s = 0.0;
    }
  }
}

// Ranks that share one memory get an equal part of its rate each, of those that work at once: with
// fewer requests than stages, stages take turns.
void share_memory(ClusterSpec& cluster, const Mesh& mesh, size_t n_requests) {
  const double shared = cluster.node.shared_memory_bytes_per_s;
  if (shared <= 0.0) return;
  const int requests = static_cast<int>(n_requests) / mesh.dp;
  const int at_once = mesh.tp * mesh.dp * std::clamp(requests, 1, mesh.pp);
  cluster.device.memory_bytes_per_s = std::min(cluster.device.memory_bytes_per_s,
                                               shared / std::min(at_once, cluster.node.n_devices));
}

// The changed machine; nodes beyond those in use are left out.
ClusterSpec machine_for(ClusterSpec cluster, int world_size, WhatIf what_if) {
  const int n = cluster.node.n_devices;
  cluster.n_nodes = std::min(cluster.n_nodes, (world_size + n - 1) / n);
  const auto free_link = [](LinkSpec& link) {
    link.bytes_per_s = free_bytes_per_s;
    link.timing.of.clear();
  };
  if (what_if == WhatIf::infinite_memory) {
    cluster.device.memory_bytes_per_s = endless_bytes_per_s;
  }
  if (what_if == WhatIf::free_links) {
    free_link(cluster.node.link);
    cluster.node.socket_bytes_per_s = free_bytes_per_s;
    if (cluster.fabric) free_link(cluster.fabric->nic);
  }
  if (what_if == WhatIf::zero_latency) {
    remove_latency(cluster.node.link.timing);
    if (cluster.fabric) remove_latency(cluster.fabric->nic.timing);
  }
  return cluster;
}

bool has_safetensors(const std::filesystem::path& folder_or_config) {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::is_directory(folder_or_config, ignored)
                                           ? folder_or_config
                                           : folder_or_config.parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

RunConfig runnable(RunConfig config) {
  if (config.sampling.temperature > 0.0) {
    throw ConfigError("--temperature: a simulated run has no logits to draw from; greedy only");
  }
  if (config.output.logits) throw ConfigError("--logits: a simulated run computes none");
  if (config.check == CheckMode::full) {
    throw ConfigError("--check full: a simulated run computes nothing to check");
  }
  if (config.layout != Layout::automatic) {
    throw ConfigError("--layout: a simulated run takes the links of its --cluster");
  }
  if (config.cluster.algorithm && !algorithm_by_name(*config.cluster.algorithm)) {
    throw ConfigError("--algorithm " + *config.cluster.algorithm + ": there is no such algorithm");
  }
  // Shapes are all it needs: a folder without weights will do.
  const ModelLocation location = locate_model(config.model);
  if (!config.weights && location.kind == ModelKind::hugging_face &&
      !has_safetensors(location.path)) {
    config.weights = "random";
  }
  config.output = {.quiet = true};
  config.sampling.ignore_eos = true;
  config.warmup = 0;
  config.repeats = 1;
  config.check = CheckMode::off;
  return config;
}

std::string calibration(const std::string& source) {
  return source.empty() || source == "none" ? "ideal, not calibrated" : source;
}

// The hosts of the tables differ: what is said of one's buses need not hold for another's.
bool carries_sharing(const LinkSpec& link) {
  if (!link.timing.source.starts_with("carried")) return false;
  return std::any_of(link.timing.of.begin(), link.timing.of.end(), [](const auto& entry) {
    return std::any_of(entry.second.begin(), entry.second.end(), [](const ProtocolTiming& p) {
      return p.sharing > 0.0;
    });
  });
}

void label(RunRecord& record,
           const RunConfig& config,
           const ClusterSpec& cluster,
           const Mesh& mesh,
           WhatIf what_if) {
  RunDescription& run = record.run;
  run.simulated = true;
  record.instrument_overhead.reset();  // virtual stamps cost nothing
  for (PhaseRecord& phase : record.phases) phase.instrument_overhead.reset();
  run.options["cluster"] = cluster.name;
  const ClusterConfig& asked = config.cluster;
  if (asked.algorithm) run.options["algorithm"] = *asked.algorithm;
  if (asked.link_gb_s) run.options["link_gb_s"] = fmt::format("{}", *asked.link_gb_s);
  if (asked.link_us) run.options["link_us"] = fmt::format("{}", *asked.link_us);
  const int n_devices = cluster.node.n_devices;
  std::vector<std::string> labels;
  labels.push_back(fmt::format("SIMULATED on {}: {}", cluster.name, cluster.description));
  if (!cluster.device.peak_flops.contains(MathType::bf16) && config.compute_dtype == DType::BF16) {
    labels.push_back(fmt::format("{} has no bf16: its arithmetic is charged as {}",
                                 cluster.device.name,
                                 math_name(math_of(cluster.device, DType::BF16))));
  }
  if (carries_sharing(cluster.node.link)) {
    labels.push_back(
        "warning: how its devices share the host's buses is carried from another host: "
        "servers with peer-to-peer paths do far better");
  }
  if (what_if != WhatIf::nothing) {
    labels.push_back(fmt::format("what if: {}", what_if_name(what_if)));
  }
  labels.push_back("token ids are drawn, not computed");
  labels.push_back("kernel times: " + calibration(cluster.device.timing.source));
  if (mesh.world_size() > 1) {
    labels.push_back("link times: " + calibration(cluster.node.link.timing.source));
  }
  if (mesh.world_size() > n_devices) {
    labels.push_back("fabric times: " + calibration(cluster.fabric->nic.timing.source));
    labels.push_back(fmt::format("rank r sits on device r mod {0} of node r / {0}", n_devices));
  }
  if (mesh.tp > n_devices || n_devices % mesh.tp != 0) {
    const bool crosses = mesh.world_size() > n_devices;
    if (crosses) {
      labels.push_back(
          fmt::format("warning: tp {} crosses nodes of {} devices: its all-reduces go over {}",
                      mesh.tp,
                      n_devices,
                      cluster.fabric->nic.name));
    }
  }
  run.labels.insert(run.labels.begin(), labels.begin(), labels.end());
}

}  // namespace

SimulatedRun simulate(const RunConfig& config,
                      const ClusterSpec& cluster,
                      WhatIf what_if,
                      bool memoise) {
  const RunConfig run = runnable(config);
  const Mesh mesh = simulated_mesh(run.parallel);
  if (mesh.world_size() > cluster.n_devices()) {
    throw ConfigError(fmt::format("tp {} x pp {} x dp {} = {} devices, and {} has {} ({} x {})",
                                  mesh.tp,
                                  mesh.pp,
                                  mesh.dp,
                                  mesh.world_size(),
                                  cluster.name,
                                  cluster.n_devices(),
                                  cluster.n_nodes,
                                  cluster.node.n_devices));
  }
  SoloControl solo;
  const RunInputs inputs = open_inputs(run, mesh, solo);
  ClusterSpec shared = with_links(cluster, run.cluster.link_gb_s, run.cluster.link_us);
  share_memory(shared, mesh, inputs.workload.requests.size());
  const ClusterSpec machine = machine_for(std::move(shared), mesh.world_size(), what_if);
  const std::vector<MemoryRecord> planned = memory_that_fits(run, inputs, mesh, machine);
  Simulation simulation(run,
                        inputs,
                        mesh,
                        machine,
                        {.no_waiting = what_if == WhatIf::no_waiting, .memoise = memoise});
  RunOutcome outcome = simulation.run(planned);
  label(outcome.record, config, machine, mesh, what_if);
  return {std::move(outcome.record), std::move(outcome.timelines)};
}

}  // namespace testbed
