// The program: starts MPI, reads the command line, puts together what a rank is given, and runs the
// command.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "kernels/base/errors.hpp"
#include "launch/cpu_rank.hpp"
#include "parallel/comm/mpi_world.hpp"
#include "runtime/commands/run.hpp"
#include "runtime/config/command_line.hpp"

namespace testbed {
namespace {

// What every rank knows alike: rank 0 says it in one line.
int said_once(const MpiWorld& world, const Error& error) {
  if (world.rank() == 0) fmt::print(stderr, "testbed: {}\n", error.what());
  return static_cast<int>(error.code());
}

// How messages travel is settled when MPI starts. A mistake in the arguments is told once it has.
MpiOptions mpi_options(std::span<const std::string> args) {
  try {
    const auto parsed = parse_command_line(args);
    const auto* config = std::get_if<RunConfig>(&parsed);
    return {.receiver_fetches = config != nullptr && config->parallel.pp > 1};
  } catch (const ConfigError&) {
    return {};
  }
}

// Hardware that would be left idle in silence is a mistake, not a fallback.
void check_device_choice(const RunConfig& config) {
  if (config.device == DeviceChoice::automatic && std::filesystem::exists("/dev/nvidiactl")) {
    throw ConfigError(
        "this host has an NVIDIA device and this build no CUDA device: --device cpu runs on the "
        "processor");
  }
}

int run(MpiWorld& world, const RunConfig& config) {
  check_device_choice(config);
  if (const auto reason = singleton_under_launcher(world.size())) throw ConfigError(*reason);
  world.set_waiting({.deadline_s = config.timeout_s});
  const std::unique_ptr<ControlChannel> control = world.make_control();
  std::optional<CpuProcess> process;
  std::optional<std::string> error;
  try {
    process.emplace(world, config.threads);
  } catch (const Error& e) {
    error = e.what();
  }
  control->agree_on_mistake(error);
  if (world.rank() == 0 && !process->warning().empty()) {
    fmt::print(stderr, "testbed: warning: {}\n", process->warning());
  }
  const CpuRank rank(world, *process, config);
  run_rank(rank.context());
  return static_cast<int>(ExitCode::ok);
}

// Failures of one rank end the whole job: the others may be waiting for it.
int guarded(MpiWorld& world, std::span<const std::string> args) {
  try {
    const auto parsed = parse_command_line(args);
    if (const auto* info = std::get_if<InfoText>(&parsed)) {
      if (world.rank() == 0) fmt::print("{}", info->text);
      return static_cast<int>(ExitCode::ok);
    }
    return run(world, std::get<RunConfig>(parsed));
  } catch (const ConfigError& e) {
    return said_once(world, e);
  } catch (const WeightsError& e) {
    return said_once(world, e);
  } catch (const JobError& e) {
    return said_once(world, e);
  } catch (const Error& e) {
    fmt::print(stderr, "testbed: rank {} ({}): {}\n", world.rank(), world.host(), e.what());
    world.abort(static_cast<int>(e.code()));
  } catch (const std::exception& e) {
    fmt::print(stderr,
               "testbed: rank {} ({}): internal error: {}\n",
               world.rank(),
               world.host(),
               e.what());
    world.abort(static_cast<int>(ExitCode::internal_error));
  }
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  testbed::MpiWorld world(testbed::mpi_options(args));
  return testbed::guarded(world, args);
}
