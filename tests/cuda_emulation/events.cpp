// Events: marks that a stream comes to, others wait for, and that have a time.
#include <algorithm>
#include <chrono>

#include "tests/cuda_emulation/state.hpp"

namespace emulation {

std::shared_ptr<EventState> find_event(cudaEvent_t handle) {
  auto* event = reinterpret_cast<Event*>(handle);
  return state().events.count(event) != 0 ? event->state : nullptr;
}

Work record_work(std::shared_ptr<EventState> event, int64_t number) {
  return {Kind::record, [event = std::move(event), number] {
            event->n_done = std::max(event->n_done, number);
            event->done_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                 std::chrono::steady_clock::now().time_since_epoch())
                                 .count();
            return true;
          }};
}

Work wait_work(std::shared_ptr<EventState> event, int64_t number) {
  return {Kind::wait, [event = std::move(event), number] { return event->n_done >= number; }};
}

namespace {

// A node that is told its number when the graph is launched (graph_work).
Work external(Kind kind, std::shared_ptr<EventState> event) {
  return {kind, [] { return true; }, std::move(event)};
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  Stream* stream = find_stream(stream_handle);
  const auto event = find_event(handle);
  if (stream == nullptr || event == nullptr) return cudaErrorInvalidResourceHandle;
  const bool is_external = flags == cudaEventRecordExternal;
  if (flags != cudaEventRecordDefault && !is_external) return cudaErrorInvalidValue;
  if (stream->capture == nullptr) {
    if (is_external) return cudaErrorInvalidValue;  // invalid outside of captures
    event->capture = nullptr;
    event->stream = stream;
    return enqueue_work(*stream, record_work(event, ++event->n_recorded));
  }
  if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (is_external) return enqueue_work(*stream, external(Kind::record, event));
  event->capture = stream->capture;
  event->after = stream->after;
  return cudaSuccess;
}

// The stream joins the event's capture, or waits for it there.
cudaError_t join_capture(Stream& stream, const EventState& event) {
  if (stream.capture != nullptr && stream.capture != event.capture) {
    stream.capture->invalid = true;
    event.capture->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (event.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (state().captures.count(event.capture) == 0) return cudaErrorInvalidValue;  // it has ended
  stream.capture = event.capture;
  stream.capture->streams.insert(&stream);
  for (const size_t node : event.after) {
    if (std::find(stream.after.begin(), stream.after.end(), node) == stream.after.end()) {
      stream.after.push_back(node);
    }
  }
  return cudaSuccess;
}

cudaError_t wait(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags) {
  Stream* stream = find_stream(stream_handle);
  const auto event = find_event(handle);
  if (stream == nullptr || event == nullptr) return cudaErrorInvalidResourceHandle;
  const bool is_external = flags == cudaEventWaitExternal;
  if (flags != cudaEventWaitDefault && !is_external) return cudaErrorInvalidValue;
  if (is_external) {
    if (stream->capture == nullptr) return cudaErrorInvalidValue;
    return enqueue_work(*stream, external(Kind::wait, event));
  }
  if (event->capture != nullptr) return join_capture(*stream, *event);
  if (stream->capture != nullptr) {
    // Its work is not in the graph.
    if (event->n_recorded == 0) return cudaSuccess;
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (event->n_done >= event->n_recorded) return cudaSuccess;
  return enqueue_work(*stream, wait_work(event, event->n_recorded));
}

Stream* stream_of(const EventState& event) {
  for (const auto& stream : state().all_streams) {
    if (stream.get() == event.stream) return stream.get();
  }
  return nullptr;
}

}  // namespace
}  // namespace emulation

using emulation::entry;
using emulation::WhileCapturing;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return entry("cudaEventCreateWithFlags", [&] {
    constexpr unsigned known =
        cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    if (handle == nullptr || (flags & ~known) != 0) return cudaErrorInvalidValue;
    auto* event = new emulation::Event;
    event->state->timing = (flags & cudaEventDisableTiming) == 0;
    emulation::state().events.insert(event);
    *handle = reinterpret_cast<cudaEvent_t>(event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return emulation::release("cudaEventDestroy", [&] {
    auto* event = reinterpret_cast<emulation::Event*>(handle);
    if (emulation::state().events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
    delete event;  // work on streams holds its state
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return entry("cudaEventRecord",
               [&] { return emulation::record(event, stream, cudaEventRecordDefault); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return entry("cudaEventRecordWithFlags", [&] { return emulation::record(event, stream, flags); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return entry("cudaStreamWaitEvent", [&] { return emulation::wait(stream, event, flags); });
}

// Answers how things stood before it let the work go on, so that "not yet" is answered too.
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return entry(
      "cudaEventQuery",
      [&] {
        const auto event = emulation::find_event(handle);
        if (event == nullptr) return cudaErrorInvalidResourceHandle;
        if (event->capture != nullptr) return cudaErrorCapturedEvent;
        if (event->n_done >= event->n_recorded) return cudaSuccess;
        emulation::poll(emulation::stream_of(*event));
        const cudaError_t error = emulation::state().sticky_error;
        return error != cudaSuccess ? error : cudaErrorNotReady;
      },
      WhileCapturing::refused);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return entry(
      "cudaEventSynchronize",
      [&] {
        const auto event = emulation::find_event(handle);
        if (event == nullptr) return cudaErrorInvalidResourceHandle;
        if (event->capture != nullptr) return cudaErrorCapturedEvent;
        const int64_t number = event->n_recorded;
        return emulation::wait_until(emulation::stream_of(*event),
                                     [&] { return event->n_done >= number; });
      },
      WhileCapturing::refused);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return entry("cudaEventElapsedTime", [&] {
    const auto from = emulation::find_event(start);
    const auto to = emulation::find_event(end);
    if (ms == nullptr) return cudaErrorInvalidValue;
    if (from == nullptr || to == nullptr || !from->timing || !to->timing || from->n_recorded == 0 ||
        to->n_recorded == 0) {
      return cudaErrorInvalidResourceHandle;
    }
    if (from->capture != nullptr || to->capture != nullptr) return cudaErrorCapturedEvent;
    if (from->n_done < from->n_recorded || to->n_done < to->n_recorded) return cudaErrorNotReady;
    constexpr double ms_per_ns = 1e-6;
    *ms = static_cast<float>(static_cast<double>(to->done_ns - from->done_ns) * ms_per_ns);
    return cudaSuccess;
  });
}
