#include "runtime/commands/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <set>

#include "kernels/base/errors.hpp"
#include "runtime/commands/expected_collectives.hpp"
#include "runtime/commands/run.hpp"
#include "runtime/commands/sim_fit.hpp"
#include "runtime/commands/sim_labels.hpp"
#include "runtime/commands/sim_machine.hpp"
#include "runtime/commands/sim_rank.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"

namespace testbed {
namespace {

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
        times_(
            cluster,
            config.cluster.algorithm ? algorithm_by_name(*config.cluster.algorithm) : std::nullopt,
            config.deterministic) {}

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
    const auto n = static_cast<size_t>(mesh_.world_size());
    std::map<std::pair<Axis, int>, SimGroup*> made;  // by axis and first rank
    std::vector<std::map<Axis, SimGroup*>> groups(n);
    const auto group_of = [&](size_t rank, Axis axis) {
      const std::vector<int> members = mesh_.group(static_cast<int>(rank), axis);
      SimGroup*& group = made[{axis, members.front()}];
      if (group == nullptr) group = &network.make_group(members, axis);
      return group;
    };
    for (size_t rank = 0; rank < n; ++rank) {
      for (const Axis axis : {Axis::tp, Axis::cp, Axis::ep, Axis::pp}) {
        groups[rank][axis] = group_of(rank, axis);
      }
      const Coordinates mine = mesh_.coordinates(static_cast<int>(rank));
      Coordinates next = mine;
      next.pp = (next.pp + 1) % mesh_.pp;  // the last one sends ids to the first
      network.expect_messages(static_cast<int>(rank), mesh_.rank(next));
      next = mine;
      next.cp = (next.cp + 1) % mesh_.cp;  // the ring
      network.expect_messages(static_cast<int>(rank), mesh_.rank(next));
    }
    network.find_exclusive_groups();
    const SimJob job{config_, inputs_, mesh_, network, hub, network.transports()};
    std::vector<std::unique_ptr<SimRank>> ranks;
    ranks.reserve(n);
    for (size_t rank = 0; rank < n; ++rank) {
      ranks.push_back(
          std::make_unique<SimRank>(job, static_cast<int>(rank), groups[rank], planned[rank]));
    }
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
      text += fmt::format(" rank {} (tp {}, cp {}, pp {}, dp {})", left[i], c.tp, c.cp, c.pp, c.dp);
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
  for (const Injection& injection : config.inject) {
    if (injection.kind == Injection::Kind::delay) continue;
    throw ConfigError(fmt::format("--inject {}: a simulated run can be given a delay only",
                                  injection_name(injection.kind)));
  }
  if (config.allow_shared_gpu) throw ConfigError("--allow-shared-gpu: a simulated run has no GPU");
  if (config.dram_counters) throw ConfigError("--dram-counters: a simulated run has no GPU");
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

}  // namespace

SimulatedRun simulate(const RunConfig& config,
                      const ClusterSpec& cluster,
                      WhatIf what_if,
                      bool memoise) {
  const RunConfig run = runnable(config);
  const Mesh mesh = simulated_mesh(run.parallel);
  if (const auto reason = why_too_many_devices(mesh, cluster)) {
    throw ConfigError(
        fmt::format("{} ({} x {})", *reason, cluster.n_nodes, cluster.node.n_devices));
  }
  SoloControl solo;
  const RunInputs inputs = open_inputs(run, mesh, solo);
  const ClusterSpec machine =
      machine_for(with_links(cluster, run.cluster.link_gb_s, run.cluster.link_us),
                  mesh,
                  static_cast<int64_t>(inputs.workload.requests.size()),
                  what_if);
  const std::vector<MemoryRecord> planned = memory_that_fits(run, inputs, mesh, machine);
  Simulation simulation(run,
                        inputs,
                        mesh,
                        machine,
                        {.no_waiting = what_if == WhatIf::no_waiting, .memoise = memoise});
  RunOutcome outcome = simulation.run(planned);
  label_simulated(outcome.record, config, machine, mesh, what_if);
  return {std::move(outcome.record), std::move(outcome.timelines)};
}

}  // namespace testbed
