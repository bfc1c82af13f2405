// The pieces of a sweep's table (sweep_report.hpp).
#pragma once

#include <vector>

#include "runtime/report/table_parts.hpp"
#include "runtime/sweep/sweep.hpp"

namespace testbed::table {

// Points of one cluster and workload, in their order; not empty.
using Block = std::vector<const SweepResult*>;

// "tp 8 x pp 2 x dp 1"
std::string split_name(const SweepPoint& point);
// "batch 1, context 8192, prompt 1"
std::string workload_name(const SweepPoint& point);

// The split of each point's step, its bars, and the what-ifs.
void add_phase_block(Lines& out, const Block& block, Phase phase);

// Cluster by cluster, with the reasons.
void add_crossovers(Lines& out, const Sweep& sweep);

// Best split and Pareto front of each cluster and workload.
void add_best(Lines& out, const Sweep& sweep);

}  // namespace testbed::table
