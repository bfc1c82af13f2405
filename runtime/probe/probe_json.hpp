// The probe's record as strict JSON (INTERFACE.md).
#pragma once

#include <string>

#include "runtime/probe/probe_record.hpp"

namespace testbed {

// Ends with a newline.
std::string to_json(const ProbeRecord& record);

}  // namespace testbed
