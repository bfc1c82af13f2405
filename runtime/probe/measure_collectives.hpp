// Times the collectives that a communicator has, by group size, payload and algorithm.
#pragma once

#include <utility>
#include <vector>

#include "kernels/device.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/control.hpp"
#include "runtime/probe/probe_record.hpp"

namespace testbed {

// The job's ranks 0 .. size-1 as a group. On the ranks beyond, the pointers are null.
struct ProbeGroup {
  int size = 2;
  Communicator* as_chosen = nullptr;  // as a run uses it: takes the algorithm by the payload
  struct Forced {
    CommAlgorithm algorithm;
    Communicator* group;     // takes this one for every all-reduce up to most_bytes
    int64_t most_bytes = 0;  // of a payload; 0: any
  };
  std::vector<Forced> all_reduce;
};

// Payloads in the device's compute dtype, of 512 bytes to most_bytes in powers of two. All ranks of
// the job call it together; every rank gets the result. A call's time is the slowest rank's, the
// figure a median. A curve ends before most_bytes where one call takes longer than 0.4 s, or where
// its algorithm takes no larger payload.
std::vector<CollectivePoint> measure_collectives(const std::vector<ProbeGroup>& groups,
                                                 ControlChannel& control,
                                                 Device& device,
                                                 int64_t most_bytes);

}  // namespace testbed
