// The pieces of the terminal's summary of an acceptance.
#pragma once

#include <string>

#include "runtime/report/acceptance_parts.hpp"
#include "runtime/report/table_parts.hpp"

namespace testbed::acceptance_report {

// The columns of the figures of add_case.
void add_figure_header(table::Lines& out);
// One case: how it ended and why, who is blamed, its figures, its matrices, its notes. A figure of
// many devices or links is one line, and one more for each that missed its gate.
void add_case(table::Lines& out, const Acceptance& acceptance, const CaseResult& result);

}  // namespace testbed::acceptance_report
