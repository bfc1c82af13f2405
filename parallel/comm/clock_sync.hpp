// The offset of each rank's clock to rank 0's. Ranks of rank 0's host share its monotonic clock:
// offset and error are 0. Elsewhere it is taken from the quickest of several round trips, and the
// error is half of that trip.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/control.hpp"

namespace testbed {

struct ClockOffset {
  int64_t offset_ns = 0;  // added to this rank's stamps to bring them to rank 0's clock
  int64_t error_ns = 0;   // bound of its error
};

// All ranks call it together. hosts: of all ranks.
ClockOffset estimate_clock_offset(ControlChannel& control, const std::vector<std::string>& hosts);

// From one round trip: sent and answered on my clock, stamped in between on the other's.
ClockOffset offset_of_round_trip(int64_t sent_ns, int64_t stamped_ns, int64_t answered_ns);

}  // namespace testbed
