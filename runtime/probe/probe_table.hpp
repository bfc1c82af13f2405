// What a person reads of a probe, on a terminal.
#pragma once

#include <string>

#include "runtime/probe/probe_record.hpp"

namespace testbed {

// At most 100 columns. The first line says SIMULATED where nothing was measured.
std::string to_table(const ProbeRecord& record);

}  // namespace testbed
