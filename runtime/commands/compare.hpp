// The compare command: two records side by side.
#pragma once

#include "runtime/config/commands.hpp"

namespace testbed {

// In one process. Prints and writes the report; 0 whatever differs. Throws ConfigError.
int run_compare(const CompareConfig& config);

}  // namespace testbed
