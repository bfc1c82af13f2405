// The record's devices as CSV.
#pragma once

#include <string>

#include "runtime/measure/run_record.hpp"

namespace testbed {

// RFC 4180: comma, CRLF, quotes doubled, one header line; one line per phase and device. The first
// columns say which run it was, so that files of several runs can be put one below the other. Times
// are per step; a null is an empty field. UTF-8; numbers do not depend on the locale.
std::string to_csv(const RunRecord& record);

}  // namespace testbed
