// From measured collectives to LinkTiming: start and rate of each operation and algorithm, in
// ranges of payload, as parallel/comm/collective_schedule.hpp charges them.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/link_timing.hpp"
#include "runtime/probe/probe_record.hpp"

namespace testbed {

// Collectives of F32 or BF16 payloads. The source line is left to the caller.
LinkTiming fit_link_timing(std::span<const CollectivePoint> points);

// The highest rate that any of them reached, bytes/s that a rank sends: the line rate of a link
// that has no data sheet. 0 if there are none.
double highest_rate(const LinkTiming& timing);

// What the timing gives for a point of a group on one node, in us.
double modelled_us(const LinkTiming& timing, const CollectivePoint& point);

}  // namespace testbed
