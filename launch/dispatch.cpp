#include "launch/dispatch.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <functional>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "launch/accept_rank.hpp"
#include "launch/cpu_rank.hpp"
#include "launch/device_choice.hpp"
#include "launch/gpu.hpp"
#include "launch/probe_rank.hpp"
#include "parallel/comm/sim_control.hpp"
#include "runtime/commands/accept.hpp"
#include "runtime/commands/compare.hpp"
#include "runtime/commands/plan.hpp"
#include "runtime/commands/predict.hpp"
#include "runtime/commands/probe.hpp"
#include "runtime/commands/probe_acceptance.hpp"
#include "runtime/commands/run.hpp"
#include "runtime/commands/sim_fit.hpp"
#include "runtime/commands/simulate.hpp"
#include "runtime/commands/sweep.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/config/split.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {
namespace {

// What one process does for all; the others wait for its end, asleep. A mistake that it finds is
// every process's.
int on_process_zero(MpiWorld& world, const std::function<int()>& work) {
  const MpiWaiting usual = world.waiting();
  world.set_waiting({.deadline_s = 1e9, .may_spin = false, .sleep_us = 1000});
  const std::unique_ptr<ControlChannel> control = world.make_control();
  world.set_waiting(usual);
  std::optional<std::string> mistake;
  int code = static_cast<int>(ExitCode::ok);
  if (world.rank() == 0) {
    try {
      code = work();
    } catch (const ConfigError& e) {
      mistake = e.what();
    } catch (const WeightsError& e) {
      mistake = e.what();
    }
  }
  control->agree_on_mistake(mistake);
  return code;
}

int simulate_run(MpiWorld& world, RunConfig config) {
  if (world.size() > 1) {
    config.parallel.dp = resolve_mesh(config.parallel, world.size()).dp;
  }
  return on_process_zero(world, [&] {
    SoloControl solo;
    check_outputs(config.output, solo);
    SimulatedRun run = simulate(config, read_cluster(cluster_name(config.cluster)));
    write_reports(config.output,
                  {std::move(run.record), std::move(run.timelines)},
                  simulated_mesh(config.parallel));
    return static_cast<int>(ExitCode::ok);
  });
}

// The ranks that this process would run. One process may stand for a whole simulated job, whose
// ranks would then all be on this host.
std::vector<MemoryRecord> plans_of(const MpiWorld& world,
                                   const RunConfig& config,
                                   const RunInputs& inputs,
                                   const Mesh& mesh) {
  std::vector<MemoryRecord> plans;
  if (world.size() > 1) {
    plans.push_back(cpu_memory(config, inputs, mesh, world.rank()));
    return plans;
  }
  plans.reserve(static_cast<size_t>(mesh.world_size()));
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    plans.push_back(cpu_memory(config, inputs, mesh, rank));
  }
  return plans;
}

// Of what was measured, beside the prediction for the cluster if one is named.
int report(MpiWorld& world,
           const RunConfig& config,
           const std::optional<ClusterSpec>& cluster,
           std::optional<RunOutcome> outcome) {
  return on_process_zero(world, [&] {
    if (cluster) add_prediction(outcome->record, config, *cluster);
    write_reports(config.output, *outcome, resolve_mesh(config.parallel, world.size()));
    return static_cast<int>(ExitCode::ok);
  });
}

int run_on_cpu(MpiWorld& world, const RunConfig& config, const RunInputs& inputs) {
  refuse_gpu_options(config.layout, config.allow_shared_gpu);
  if (config.dram_counters) throw ConfigError("--dram-counters is of --device cuda");
  refuse_idle_cluster_options(config.cluster);
  const std::unique_ptr<ControlChannel> control = world.make_control();
  check_outputs(config.output, *control);
  std::optional<ClusterSpec> cluster;  // that the run is held against: a mistake in it is told now
  if (config.cluster.name) cluster = read_cluster(*config.cluster.name);
  const std::unique_ptr<CpuProcess> process = start_cpu_process(world, *control, config.threads);
  const CpuRank rank(world, *process, config, inputs);
  return report(world, config, cluster, run_rank(rank.context()));
}

int run_on_gpus(MpiWorld& world, const RunConfig& config, const RunInputs& inputs) {
  refuse_idle_cluster_options(config.cluster);
  check_outputs(config.output, *world.make_control());
  std::optional<ClusterSpec> cluster;
  if (config.cluster.name) cluster = read_cluster(*config.cluster.name);
  std::optional<RunOutcome> outcome = run_on_gpu(world, config, inputs);
  return report(world, config, cluster, std::move(outcome));
}

// --device auto: GPUs if every rank sees one.
DeviceChoice chosen_device(const MpiWorld& world, ControlChannel& control, DeviceChoice asked) {
  if (asked != DeviceChoice::automatic) return asked;
  int n_gpus = 0;
  agree_on(control, [&] {
    n_gpus = n_visible_gpus();
    if (n_gpus == 0) refuse_idle_gpu(asked);
  });
  std::string with;
  std::string without;
  const std::vector<Bytes> all = control.all_gather(pack_text(n_gpus > 0 ? "yes" : ""));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::string& list = unpack_text(all[rank]).empty() ? without : with;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", rank);
  }
  if (with.empty()) return DeviceChoice::automatic;
  if (!without.empty()) {
    throw ConfigError(fmt::format(
        "ranks {} see a GPU and ranks {} none: --device cuda, cpu or sim says what is meant",
        with,
        without));
  }
  if (world.rank() == 0) fmt::print(stderr, "testbed: --device auto: every rank sees a GPU\n");
  return DeviceChoice::cuda;
}

int run(MpiWorld& world, RunConfig config) {
  world.set_waiting({.deadline_s = config.timeout_s});
  if (config.device == DeviceChoice::sim) return simulate_run(world, config);
  if (const auto reason = singleton_under_launcher(world.size())) throw ConfigError(*reason);
  config.device = chosen_device(world, *world.make_control(), config.device);
  const bool automatic = config.device == DeviceChoice::automatic;
  const Mesh mesh = automatic && world.size() == 1 ? simulated_mesh(config.parallel)
                                                   : resolve_mesh(config.parallel, world.size());
  const std::unique_ptr<ControlChannel> control = world.make_control();
  const RunInputs inputs = open_inputs(config, mesh, *control);
  if (automatic) {
    if (const auto reason = why_places_lack_memory(
            *control, "host " + world.host(), plans_of(world, config, inputs, mesh))) {
      if (world.rank() == 0 && !config.output.quiet) {
        fmt::print(stderr, "testbed: on this host's processors it {}: simulating\n", *reason);
      }
      return simulate_run(world, config);
    }
    resolve_mesh(config.parallel, world.size());  // refuses one process for several ranks
  }
  if (config.device == DeviceChoice::cuda) return run_on_gpus(world, config, inputs);
  return run_on_cpu(world, config, inputs);
}

int run(MpiWorld& world, const SweepConfig& config) {
  return on_process_zero(world, [&] { return run_sweep(config); });
}

int run(MpiWorld& world, const CompareConfig& config) {
  return on_process_zero(world, [&] { return run_compare(config); });
}

int run(MpiWorld& world, const PlanConfig& config) {
  return on_process_zero(world, [&] { return run_plan(config); });
}

// The stages of an acceptance that measure this machine, and the profile that they make.
int probe_for_acceptance(MpiWorld& world, const ProbeConfig& config, bool on_gpus) {
  const AcceptConfig as_accepted = acceptance_of(config);
  const AcceptanceProfile empty = empty_profile(on_gpus ? "cuda" : "cpu");
  const auto work = [&config](const AcceptContext& context) {
    probe_acceptance(context, config);
    return static_cast<int>(ExitCode::ok);
  };
  return on_gpus ? accept_on_gpu(world, as_accepted, empty, work)
                 : accept_on_cpu(world, as_accepted, empty, work);
}

int run(MpiWorld& world, const ProbeConfig& config) {
  if (const auto reason = singleton_under_launcher(world.size())) throw ConfigError(*reason);
  world.set_waiting({.deadline_s = config.timeout_s});
  if (config.device == DeviceChoice::sim) {
    refuse_gpu_options(Layout::automatic, config.allow_shared_gpu);
    return on_process_zero(world, [&] {
      run_model_probe(config,
                      with_links(read_cluster(cluster_name(config.cluster)),
                                 config.cluster.link_gb_s,
                                 config.cluster.link_us));
      return static_cast<int>(ExitCode::ok);
    });
  }
  const bool on_gpus =
      chosen_device(world, *world.make_control(), config.device) == DeviceChoice::cuda;
  if (!on_gpus) refuse_gpu_options(Layout::automatic, config.allow_shared_gpu);
  if (config.acceptance) return probe_for_acceptance(world, config, on_gpus);
  return on_gpus ? probe_on_gpu(world, config) : probe_on_cpu(world, config);
}

int accept(MpiWorld& world, const AcceptConfig& config) {
  if (const auto reason = singleton_under_launcher(world.size())) throw ConfigError(*reason);
  world.set_waiting({.deadline_s = config.timeout_s});
  const std::unique_ptr<ControlChannel> control = world.make_control();
  const bool on_gpus = chosen_device(world, *control, config.device) == DeviceChoice::cuda;
  if (!on_gpus) refuse_gpu_options(config.layout, config.allow_shared_gpu);
  const AcceptanceProfile profile = choose_profile(*control, config, on_gpus ? "cuda" : "cpu");
  if (const auto plan = describe_acceptance({config, profile, world.hosts()})) {
    if (world.rank() == 0) fmt::print("{}", plan->text);
    return plan->exit_code;
  }
  return on_gpus ? accept_on_gpu(world, config, profile, run_acceptance)
                 : accept_on_cpu(world, config, profile, run_acceptance);
}

int run(MpiWorld& world, const AcceptConfig& config) {
  return with_exit_code_of_verdict([&] { return accept(world, config); });
}

int run(MpiWorld& world, const InfoText& info) {
  if (world.rank() == 0) fmt::print("{}", info.text);
  return static_cast<int>(ExitCode::ok);
}

}  // namespace

int dispatch(MpiWorld& world, const Command& command) {
  return std::visit([&](const auto& config) { return run(world, config); }, command);
}

}  // namespace testbed
