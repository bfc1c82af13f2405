// Times messages between any two ranks: where links differ, a table of pairs shows which.
#pragma once

#include "runtime/probe/measure_collectives.hpp"

namespace testbed {

// Every pair of the group's ranks, one after another, while the others wait; payloads of 64 KiB,
// 4 MiB and 256 MiB, as far as most_bytes goes. The group is of all ranks of the job, which call it
// together; every rank gets the result. None for groups of two, whose curve says it all.
std::vector<PairPoint> measure_pairs(const ProbeGroup& group,
                                     ControlChannel& control,
                                     Device& device,
                                     int64_t most_bytes);

}  // namespace testbed
