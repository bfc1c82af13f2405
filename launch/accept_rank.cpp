#include "launch/accept_rank.hpp"

#include <fmt/format.h>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "launch/cpu_rank.hpp"
#include "launch/host_facts.hpp"
#include "launch/rank_parts.hpp"
#include "runtime/commands/accept.hpp"
#include "runtime/config/acceptance_config.hpp"
#include "runtime/config/split.hpp"

namespace testbed {

AcceptanceProfile choose_profile(ControlChannel& control,
                                 const AcceptConfig& config,
                                 const std::string& device) {
  AcceptanceProfile profile;
  agree_on(control, [&] {
    if (config.profile.empty() && device != "cpu") {
      throw ConfigError(
          "--profile is missing: what GPUs are expected to do is in the profiles of "
          "configs/acceptance");
    }
    profile = read_acceptance_profile(config.profile.empty() ? "cpu-host" : config.profile);
    if (profile.device == device) return;
    throw ConfigError(fmt::format("--profile {} is for --device {}, and the ranks are on {}",
                                  profile.name,
                                  profile.device,
                                  device));
  });
  const Bytes of_rank_0 = control.broadcast(pack_text(acceptance_toml(profile)), 0);
  std::optional<std::string> error;
  if (of_rank_0 != pack_text(acceptance_toml(profile))) {
    error = fmt::format("{} is not what rank 0 has read under that name", profile.source);
  }
  control.agree_on_mistake(error);
  return profile;
}

std::unique_ptr<Watchdog> make_watchdog(const MpiWorld& world) {
  constexpr double after_rank_0_s = 1.0;
  return std::make_unique<Watchdog>(
      Watchdog::Options{.name = fmt::format("rank {} ({})", world.rank(), world.host()),
                        .whereabouts = [&world] { return world.board().report(); },
                        .exit_code = static_cast<int>(ExitCode::runtime_failure),
                        .grace_s = world.rank() == 0 ? 0.0 : after_rank_0_s,
                        .until_terminated = world.rank() == 0,
                        .ended = [&world] { return world.board().ended(); }});
}

JudgingChannel::JudgingChannel(MpiWorld& world) {
  const MpiWaiting usual = world.waiting();
  MpiWaiting waiting = usual;
  waiting.deadline_s = 1e9;
  waiting.look = [usual, deadline_s = deadline_s_](double seconds) {
    if (usual.look) usual.look(seconds);
    if (seconds > *deadline_s) throw CommError(fmt::format("no answer within {:g} s", *deadline_s));
  };
  world.set_waiting(waiting);
  channel_ = world.make_control();
  world.set_waiting(usual);
}

void install_faults(MpiWorld& world, const AcceptConfig& config, FaultSurroundings surroundings) {
  if (const auto reason = why_no_injection(config.inject, world.size())) {
    throw ConfigError(*reason);
  }
  surroundings.seed = config.seed;
  world.install(Faults::of(config.inject, world.rank(), std::move(surroundings)));
}

int accept_on_cpu(MpiWorld& world,
                  const AcceptConfig& config,
                  const AcceptanceProfile& profile,
                  const AcceptWork& work) {
  const std::unique_ptr<ControlChannel> starting = world.make_control();
  const std::unique_ptr<CpuProcess> process = start_cpu_process(world, *starting, config.threads);
  world.set_waiting({.deadline_s = config.timeout_s, .may_spin = process->may_spin()});
  install_faults(world, config, {.may_spin = process->may_spin()});
  const std::unique_ptr<ControlChannel> control = world.make_control();
  JudgingChannel judging(world);
  const std::unique_ptr<Watchdog> watchdog = make_watchdog(world);
  CpuDevice device(process->pool(), process->isa(), config.compute_dtype);
  const double slowdown = slowdown_of(world.faults(), nullptr);
  device.set_slowdown(slowdown);
  MachineInfo machine = cpu_machine(world, *process, process->peak_flops(config.compute_dtype));
  machine.read_bandwidth_sample = slowed(machine.read_bandwidth_sample, slowdown);

  const auto with_rank = [&](const RunConfig& run, const auto& use) {
    const Mesh mesh = resolve_mesh(run.parallel, world.size());
    const RunInputs inputs = open_inputs(run, mesh, *control);
    const CpuRank rank(world, *process, run, inputs);
    use(rank.context());
  };
  const auto make_group = [&world](const std::vector<int>& world_ranks, Axis axis) {
    std::unique_ptr<Communicator> group = world.make_group(world_ranks, axis);
    group->tune();
    return group;
  };
  const auto facts = [&] {
    Facts all = host_facts(world);
    all["rank.binding"] = process->binding().cores;
    all["rank.threads"] = fmt::format("{}", process->pool()->n_threads());
    all["device.name"] = device.description();
    return all;
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
       .facts = facts,
       .make_group = make_group,
       .with_rank = with_rank});
}

}  // namespace testbed
