#include "launch/dispatch.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <functional>

#include "kernels/base/errors.hpp"
#include "launch/cpu_rank.hpp"
#include "launch/device_choice.hpp"
#include "launch/probe_rank.hpp"
#include "parallel/comm/sim_control.hpp"
#include "runtime/commands/compare.hpp"
#include "runtime/commands/plan.hpp"
#include "runtime/commands/predict.hpp"
#include "runtime/commands/probe.hpp"
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

int run_on_cpu(MpiWorld& world, const RunConfig& config, const RunInputs& inputs) {
  refuse_idle_cluster_options(config.cluster);
  const std::unique_ptr<ControlChannel> control = world.make_control();
  check_outputs(config.output, *control);
  std::optional<ClusterSpec> cluster;  // that the run is held against: a mistake in it is told now
  if (config.cluster.name) cluster = read_cluster(*config.cluster.name);
  const std::unique_ptr<CpuProcess> process = start_cpu_process(world, *control, config.threads);
  const CpuRank rank(world, *process, config, inputs);
  std::optional<RunOutcome> outcome = run_rank(rank.context());
  return on_process_zero(world, [&] {
    if (cluster) add_prediction(outcome->record, config, *cluster);
    write_reports(config.output, *outcome, rank.context().mesh);
    return static_cast<int>(ExitCode::ok);
  });
}

int run(MpiWorld& world, const RunConfig& config) {
  refuse_idle_gpu(config.device);
  world.set_waiting({.deadline_s = config.timeout_s});
  if (config.device == DeviceChoice::sim) return simulate_run(world, config);
  if (const auto reason = singleton_under_launcher(world.size())) throw ConfigError(*reason);
  const bool automatic = config.device == DeviceChoice::automatic;
  const Mesh mesh = automatic && world.size() == 1 ? simulated_mesh(config.parallel)
                                                   : resolve_mesh(config.parallel, world.size());
  const std::unique_ptr<ControlChannel> control = world.make_control();
  const RunInputs inputs = open_inputs(config, mesh, *control);
  if (automatic) {
    if (const auto reason =
            why_hosts_lack_memory(*control, world.host(), plans_of(world, config, inputs, mesh))) {
      if (world.rank() == 0 && !config.output.quiet) {
        fmt::print(stderr, "testbed: on this host's processors it {}: simulating\n", *reason);
      }
      return simulate_run(world, config);
    }
    resolve_mesh(config.parallel, world.size());  // refuses one process for several ranks
  }
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

int run(MpiWorld& world, const ProbeConfig& config) {
  refuse_idle_gpu(config.device);
  if (const auto reason = singleton_under_launcher(world.size())) throw ConfigError(*reason);
  world.set_waiting({.deadline_s = config.timeout_s});
  if (config.device == DeviceChoice::sim) {
    return on_process_zero(world, [&] {
      run_model_probe(config,
                      with_links(read_cluster(cluster_name(config.cluster)),
                                 config.cluster.link_gb_s,
                                 config.cluster.link_us));
      return static_cast<int>(ExitCode::ok);
    });
  }
  return probe_on_cpu(world, config);
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
