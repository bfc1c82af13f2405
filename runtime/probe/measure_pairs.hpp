// Times messages between any two ranks: where links differ, a table of pairs shows which.
#pragma once

#include <vector>

#include "kernels/device.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/control.hpp"
#include "runtime/probe/probe_record.hpp"

namespace testbed {

// Two groups of all ranks of the job: messages to a higher rank go by one, to a lower by the other.
// What shares a stream of a GPU is done in the order posted: with one group, each end's send could
// stand behind its own receive, which waits for the other end's send.
struct MessageWays {
  Communicator& upwards;
  Communicator& downwards;
};

// Every pair of ranks, one after another, while the others wait; payloads of 64 KiB, 4 MiB and
// 256 MiB, as far as most_bytes goes. All ranks of the job call it together; every rank gets the
// result. None for two ranks, whose curve says it all.
std::vector<PairPoint> measure_pairs(const MessageWays& ways,
                                     ControlChannel& control,
                                     Device& device,
                                     int64_t most_bytes);

}  // namespace testbed
