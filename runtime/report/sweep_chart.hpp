// The split of a step as a bar of letters.
#pragma once

#include <string>

#include "runtime/measure/run_record.hpp"

namespace testbed::table {

// What the letters of step_bar stand for.
constexpr const char* bar_legend =
    "W weights  K KV  # interconnect  C compute  w wait  b bubble  o overhead";

// `columns` letters in all, each part rounded so that no edge is off by more than half a letter.
std::string step_bar(const Shares& shares, double columns);

}  // namespace testbed::table
