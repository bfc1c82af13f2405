// The sweep command: every combination of the lists, simulated and reported.
#pragma once

#include "runtime/config/commands.hpp"

namespace testbed {

// In one process. Prints and writes the reports; 0 when done. Throws Error.
int run_sweep(const SweepConfig& config);

}  // namespace testbed
