// The record as strict JSON (RFC 8259); docs/record.md lists the fields.
#pragma once

#include <string>

#include "runtime/measure/run_record.hpp"

namespace testbed {

// Integers are exact. A figure that is not finite is null, invalid UTF-8 is replaced by U+FFFD,
// control characters are escaped. Ends with a newline. Does not depend on the locale.
std::string to_json(const RunRecord& record);

}  // namespace testbed
