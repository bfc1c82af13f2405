// A matrix over ranks for a terminal: plain ASCII, readable from 2 to 64 ranks and more.
#pragma once

#include <string>
#include <vector>

#include "runtime/accept/case.hpp"
#include "runtime/report/table_parts.hpp"

namespace testbed::acceptance_report {

// Lines of at most 100 columns: title, header, a row per rank, a legend in the matrix's unit. A
// cell is shaded by its fraction of the best one, on fixed steps, so that noise does not look like
// a fault; up to 10 ranks it has its number too. Between hosts is a bar. What was not measured is
// "?". hosts may be empty or [world_size].
void add_heat_map(table::Lines& out,
                  const RankMatrix& matrix,
                  const std::vector<std::string>& hosts);

}  // namespace testbed::acceptance_report
