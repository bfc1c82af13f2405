// The program: starts MPI, reads the command line, and runs the command.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "kernels/base/complaint.hpp"
#include "kernels/base/errors.hpp"
#include "launch/dispatch.hpp"
#include "parallel/comm/job_processes.hpp"
#include "parallel/comm/watchdog.hpp"
#include "runtime/config/command_line.hpp"

namespace testbed {
namespace {

// What every rank knows alike: rank 0 says it in one line.
int said_once(const MpiWorld& world, const Error& error) {
  if (world.rank() == 0) fmt::print(stderr, "testbed: {}\n", error.what());
  return static_cast<int>(error.code());
}

// What is settled before MPI starts.
struct StartUp {
  MpiOptions mpi;
  double timeout_s = RunConfig{}.timeout_s;  // of MPI's start and end
};

double timeout_of(const Command& command) {
  return std::visit(
      [](const auto& config) {
        if constexpr (requires { config.timeout_s; }) return config.timeout_s;
        return RunConfig{}.timeout_s;
      },
      command);
}

// Before MPI can say who is rank 0, Slurm does.
int refused_before_mpi(const std::string& reason) {
  const char* task = std::getenv("SLURM_PROCID");
  if (task == nullptr || std::string_view(task) == "0") {
    fmt::print(stderr, "testbed: {}\n", reason);
  }
  return static_cast<int>(ExitCode::user_error);
}

// A mistake in the arguments is told once MPI has started.
StartUp start_up(std::span<const std::string> args) {
  try {
    const Command parsed = parse_command_line(args);
    const auto* config = std::get_if<RunConfig>(&parsed);
    // Starting processes takes seconds on a busy host, whatever the deadline of a collective is.
    constexpr double least_s = 30.0;
    return {{.receiver_fetches =
                 config != nullptr && (config->parallel.pp > 1 || config->parallel.cp > 1)},
            std::max(timeout_of(parsed), least_s)};
  } catch (const ConfigError&) {
    return {};
  }
}

// Failures of one rank end the whole job: the others may be waiting for it.
int guarded(MpiWorld& world, std::span<const std::string> args) {
  try {
    return dispatch(world, parse_command_line(args));
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
  if (const auto reason = testbed::task_without_pmi()) return testbed::refused_before_mpi(*reason);
  const testbed::StartUp start = testbed::start_up(args);
  // MPI has no deadline for a rank that does not come when it starts or ends.
  testbed::Watchdog watchdog(
      {.name = testbed::name_by_launcher(), .whereabouts = testbed::idle_processes_of_job});
  watchdog.watch("the start of MPI (a rank has not come?)", start.timeout_s);
  std::optional<testbed::MpiWorld> world(start.mpi);
  watchdog.rest();
  testbed::name_process(fmt::format("rank {} ({})", world->rank(), world->host()));
  const int code = testbed::guarded(*world, args);
  watchdog.watch("the end of MPI (a rank has not come?)", start.timeout_s);
  world.reset();
  return code;
}
