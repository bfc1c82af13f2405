// What a rank sends in a collective: exact bytes, of what the schedules of collective_schedule.hpp
// and the real communicators send alike.
#pragma once

#include <cstdint>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/group_placement.hpp"

namespace testbed {

// n_bytes as for make_schedule; parts are split_range over the elements, the broadcast's root is
// rank 0 (count ranks from the root).
int64_t wire_bytes(CommOp op,
                   CommAlgorithm algorithm,
                   int64_t n_bytes,
                   int64_t element_bytes,
                   int rank,
                   const GroupPlacement& placement);

// The same on one node.
int64_t wire_bytes(
    CommOp op, CommAlgorithm algorithm, int64_t n_bytes, int64_t element_bytes, int rank, int size);

}  // namespace testbed
