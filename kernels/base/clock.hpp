// The host's monotonic clock. All processes of one host read the same clock, so stamps of its ranks
// are comparable; across hosts an offset is estimated (parallel/comm/clock_sync.hpp).
#pragma once

#include <chrono>
#include <cstdint>

namespace testbed {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace testbed
