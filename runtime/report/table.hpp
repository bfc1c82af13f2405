// What a person reads first, on a terminal.
#pragma once

#include <string>

#include "runtime/measure/run_record.hpp"

namespace testbed {

// At most 100 columns; devices that did the same are one line. UTF-8; control characters of names
// and prompts are escaped; the wall sentence comes last. Does not depend on the locale.
std::string to_table(const RunRecord& record);

// "1.23 GB": three significant digits, powers of 1000.
std::string human_bytes(int64_t n_bytes);

}  // namespace testbed
