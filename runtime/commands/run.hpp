// The run command: check, load, warm up, time, break down, report.
#pragma once

#include <optional>
#include <vector>

#include "runtime/commands/rank_context.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

struct RunOutcome {
  RunRecord record;
  std::vector<RankTimeline> timelines;  // [world_size]
};

// Runs on every rank of every kind of device; rank 0 has the outcome. Throws Error.
std::optional<RunOutcome> run_rank(const RankContext& context);

// An output that cannot be written is refused before the run. All processes call it.
void check_outputs(const OutputConfig& output, ControlChannel& control);
// Writes the files asked for and prints the table; for rank 0.
void write_reports(const OutputConfig& output, const RunOutcome& outcome, const Mesh& mesh);

}  // namespace testbed
