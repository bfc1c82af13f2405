#include "kernels/cuda/stream_clock.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace testbed::cuda {
namespace {

struct StampArgs {
  cudaEvent_t event;
};

// External: in a graph the event is recorded anew at each launch.
void issue_stamp(const StampArgs& args, cudaStream_t on) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(on, &status), "cudaStreamIsCapturing");
  const unsigned flags =
      status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
  check(cudaEventRecordWithFlags(args.event, on, flags), "cudaEventRecordWithFlags");
}

}  // namespace

StreamClock::StreamClock(Queue& queue)
    : queue_(queue), anchor_(Event::Kind::timing), attempt_(Event::Kind::timing) {}

cudaEvent_t StreamClock::Pool::next() {
  if (n_used == events.size()) events.emplace_back(Event::Kind::timing);
  return events[n_used++].get();
}

int64_t StreamClock::now_ns() const {
  const bool called = unsettled_.empty() || queue_.n_calls() != calls_at_last_;
  // An idle device's time passes, too: what the host did since the last stamp is not what comes
  // now.
  const bool idle = !queue_.taping() && queue_.idle();
  if (called || idle) {
    const bool has_ended = called && idle && !unsettled_.empty();
    const int64_t latest_ns = has_ended ? testbed::now_ns() : std::numeric_limits<int64_t>::max();
    const cudaEvent_t event = (queue_.taping() ? of_sections_ : others_).next();
    queue_.call(&issue_stamp, StampArgs{event});
    calls_at_last_ = queue_.n_calls();
    unsettled_.push_back({event, latest_ns});
  }
  return -static_cast<int64_t>(settled_ns_.size() + unsettled_.size());
}

// On an idle stream the event is between the host's readings before and after. A host that was held
// up between them is asked again: one slow reading of thousands would else be the run's error.
int64_t StreamClock::record_anchor() {
  constexpr int64_t good_ns = 5'000;
  constexpr int most_attempts = 8;
  constexpr int64_t event_resolution_ns = 500;  // cudaEventElapsedTime's, as documented
  int64_t anchor_ns = 0;
  int64_t narrowest_ns = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < most_attempts && narrowest_ns > good_ns; ++i) {
    const int64_t before_ns = testbed::now_ns();
    check(cudaEventRecord(attempt_.get(), queue_.stream()), "cudaEventRecord");
    queue_.wait(attempt_.get());
    const int64_t window_ns = testbed::now_ns() - before_ns;
    if (window_ns >= narrowest_ns) continue;
    narrowest_ns = window_ns;
    anchor_ns = before_ns + window_ns / 2;
    std::swap(anchor_, attempt_);
  }
  error_ns_ = std::max(error_ns_, narrowest_ns / 2 + event_resolution_ns);
  return anchor_ns;
}

void StreamClock::settle() {
  if (unsettled_.empty()) return;
  queue_.synchronize();
  const int64_t anchor_ns = record_anchor();
  settled_ns_.reserve(settled_ns_.size() + unsettled_.size());
  for (const auto& [event, latest_ns] : unsettled_) {
    float ms = 0.0F;
    check(cudaEventElapsedTime(&ms, event, anchor_.get()), "cudaEventElapsedTime");
    const int64_t told_ns = anchor_ns - std::llround(double{ms} * 1e6);
    const int64_t ns = std::min(latest_ns, told_ns);
    // One stream's events come in order, whatever two anchors say.
    settled_ns_.push_back(settled_ns_.empty() ? ns : std::max(ns, settled_ns_.back()));
  }
  unsettled_.clear();
  of_sections_.n_used = 0;
  others_.n_used = 0;
}

int64_t StreamClock::ns(int64_t stamp) const {
  if (stamp >= 0) return stamp;
  const auto ticket = static_cast<size_t>(-stamp - 1);
  CHECK(ticket < settled_ns_.size());
  return settled_ns_[ticket];
}

}  // namespace testbed::cuda
