// Runs a command on the processes of the job.
#pragma once

#include "parallel/comm/mpi_world.hpp"
#include "runtime/config/commands.hpp"

namespace testbed {

// All processes call it. Returns the exit code. Throws Error.
int dispatch(MpiWorld& world, const Command& command);

}  // namespace testbed
