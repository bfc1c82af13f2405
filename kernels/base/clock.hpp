// Clocks. All processes of one host read the same monotonic clock, so stamps of its ranks are
// comparable; across hosts an offset is estimated (parallel/comm/clock_sync.hpp). A simulated
// device has a clock of its own.
#pragma once

#include <chrono>
#include <cstdint>

namespace testbed {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What stamps the ops, collectives and steps of one rank.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t now_ns() const override { return testbed::now_ns(); }
};

// The host's monotonic clock.
inline const Clock& steady_clock() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace testbed
