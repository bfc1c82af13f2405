// The run command: check, load, warm up, time, break down, report.
#pragma once

#include "runtime/commands/rank_context.hpp"

namespace testbed {

// Runs on every rank of every kind of device. Rank 0 prints and writes the reports. Throws Error.
void run_rank(const RankContext& context);

}  // namespace testbed
