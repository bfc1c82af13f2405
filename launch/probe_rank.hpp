// The probe command on CPU ranks.
#pragma once

#include "parallel/comm/mpi_world.hpp"
#include "runtime/config/commands.hpp"

namespace testbed {

int probe_on_cpu(MpiWorld& world, const ProbeConfig& config);

}  // namespace testbed
