// `testbed plan`: closed forms, no devices. One process.
#pragma once

#include "runtime/config/commands.hpp"

namespace testbed {

// Prints the report, writes the JSON and the table of claims, as asked. Returns the exit code.
int run_plan(const PlanConfig& config);

}  // namespace testbed
