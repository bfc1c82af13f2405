// A sweep for people, scripts and spreadsheets. All of it is simulated and says so. UTF-8; numbers
// do not depend on the locale.
#pragma once

#include <string>

#include "runtime/sweep/sweep.hpp"

namespace testbed {

// At most 100 columns (user's names apart). SIMULATED opens the first line. Per cluster, workload
// and phase: the split of every point's step, its bars, what each what-if would give; then where
// the interconnect overtakes the memory, cluster by cluster.
std::string sweep_table(const Sweep& sweep);

// {schema, simulated, points: [record with its place in `sweep`], refused, crossover: {CLUSTER:
// {phase: {tp, cause, ...}}}, crossovers, what_if, best}. `crossover` has each cluster's first
// series, `crossovers` all. Strict JSON as to_json's.
std::string sweep_json(const Sweep& sweep);

// As to_csv: one line per point and phase; a point that was refused is one line with the reason.
std::string sweep_csv(const Sweep& sweep);

}  // namespace testbed
