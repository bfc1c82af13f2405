// StreamClock: stamps by the device. now_ns() enqueues an event on the compute stream and returns a
// ticket, a negative number; once the device is there, ns() tells when that was, by the host's
// monotonic clock. So ops, collectives and steps are stamped where they happen, in a graph too.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/clock.hpp"
#include "kernels/cuda/queue.hpp"

namespace testbed::cuda {

class StreamClock final : public Clock {
 public:
  explicit StreamClock(Queue& queue);
  // Within a replayed section the n-th stamp has the same event every time: settle() before the
  // next section.
  int64_t now_ns() const override;
  bool settled() const { return unsettled_.empty(); }
  // Waits for the device and finds the times of all tickets so far.
  void settle();
  // The time of a ticket (settled), or of a stamp that is none. Bounded by error_ns().
  int64_t ns(int64_t stamp) const;
  // How well the device's events are placed on the host's clock, worst so far.
  int64_t error_ns() const { return error_ns_; }

 private:
  struct Pool {
    std::vector<Event> events;
    size_t n_used = 0;
    cudaEvent_t next();
  };

  int64_t record_anchor();  // its time by the host's clock

  struct Unsettled {
    cudaEvent_t event;
    int64_t latest_ns;  // what it marks the end of had been waited for then
  };

  Queue& queue_;
  mutable Pool of_sections_;  // replayed ones
  mutable Pool others_;
  mutable std::vector<Unsettled> unsettled_;  // of tickets settled_ns_.size(), ...
  mutable int64_t calls_at_last_ = -1;  // nothing enqueued or waited for since: the same ticket
  std::vector<int64_t> settled_ns_;     // [ticket]
  Event anchor_;                        // of the last settle()
  Event attempt_;                       // at a better one
  int64_t error_ns_ = 0;
};

}  // namespace testbed::cuda
