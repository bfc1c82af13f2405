// AcceptanceProfile from and to TOML: configs/acceptance/*.toml.
#pragma once

#include <string>

#include "runtime/accept/acceptance_profile.hpp"

namespace testbed {

// A preset of configs/acceptance, or a .toml file. Throws ConfigError with file:line, also for an
// expectation that cannot be held: of an unknown figure, of a bandwidth below the plateau or a
// latency above it (D33), of the bus bandwidth of one rank (D35).
AcceptanceProfile read_acceptance_profile(const std::string& name_or_path);

// The same format; reads back equal, to rounding, less `source` and `where`.
std::string acceptance_toml(const AcceptanceProfile& profile);

}  // namespace testbed
