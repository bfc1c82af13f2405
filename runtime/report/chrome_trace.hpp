// The breakdown pass as a Chrome trace (chrome://tracing, Perfetto).
#pragma once

#include <span>
#include <string>

#include "parallel/mesh.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

// Trace event format, JSON object form: a process per rank; tracks "steps", "compute" and "comm".
// Complete events, in microseconds from the earliest stamp, on rank 0's clock. A collective is two
// events: waiting for the last rank ("… wait", on the pp axis "… bubble") and the transfer. Throws
// Error if two events of a track overlap, or if timelines do not match. otherData.simulated says
// whether the stamps are of a virtual clock.
std::string chrome_trace(std::span<const RankTimeline> timelines, const Mesh& mesh, bool simulated);

}  // namespace testbed
