// The program: starts MPI, reads the command line, and runs the command.
#include <fmt/format.h>

#include <cstdio>

#include "kernels/base/errors.hpp"
#include "launch/dispatch.hpp"
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
    return {.receiver_fetches =
                config != nullptr && (config->parallel.pp > 1 || config->parallel.cp > 1)};
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
  testbed::MpiWorld world(testbed::mpi_options(args));
  return testbed::guarded(world, args);
}
