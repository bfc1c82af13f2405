// Streams: queues of work that run when somebody waits.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "tests/cuda_emulation/state.hpp"

namespace emulation {

Stream* find_stream(cudaStream_t handle) {
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (state().streams.count(stream) != 0) return stream;
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    std::fprintf(stderr, "emulation: work on the default stream, which orders all others\n");
  }
  return nullptr;
}

cudaError_t enqueue_work(Stream& stream, Work work) {
  if (stream.capture == nullptr) {
    if ((stream.flags & cudaStreamNonBlocking) == 0) run_default_stream();
    stream.queue.push_back(std::move(work));
    return cudaSuccess;
  }
  Capture& capture = *stream.capture;
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  capture.nodes.push_back({std::move(work), stream.after});
  stream.after = {capture.nodes.size() - 1};
  return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t handle, std::function<bool()> try_run) {
  const std::lock_guard lock(state().mutex);
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return remember(cudaErrorInvalidResourceHandle);
  return remember(enqueue_work(*stream, {Kind::kernel, std::move(try_run)}));
}

void run_default_stream() {
  auto& work = state().on_default_stream;
  for (; !work.empty(); work.pop_front()) work.front()();
}

bool run_stream(Stream& stream) {
  State& all = state();
  if (all.in_progress) return false;
  all.in_progress = true;
  bool any = false;
  while (!stream.queue.empty() && all.sticky_error == cudaSuccess) {
    if (!stream.queue.front().run()) break;
    stream.queue.pop_front();
    any = true;
  }
  if (all.sticky_error != cudaSuccess) drop_work();
  all.in_progress = false;
  return any;
}

bool progress() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  bool any = false;
  std::vector<Stream*> streams;
  for (const auto& stream : all.all_streams) streams.push_back(stream.get());
  if (all.order.kind == Order::Kind::reverse) std::reverse(streams.begin(), streams.end());
  for (Stream* stream : streams) any |= run_stream(*stream);
  std::erase_if(all.all_streams, [&](const auto& stream) {
    return stream->queue.empty() && all.streams.count(stream.get()) == 0;
  });
  return any;
}

namespace {

// After a look at the streams. Where nothing goes on, another process has to do something first: it
// is let have the core, and after a while this one sleeps.
void after_progress(bool any) {
  constexpr int n_busy_rounds = 100;
  constexpr unsigned nap_us = 50;
  State& all = state();
  all.n_idle_rounds = any ? 0 : all.n_idle_rounds + 1;
  if (any) return;
  const bool naps = all.n_idle_rounds > n_busy_rounds;
  all.mutex.unlock();
  naps ? static_cast<void>(usleep(nap_us)) : static_cast<void>(sched_yield());
  all.mutex.lock();
}

}  // namespace

void poll(Stream* stream) {
  if (state().in_progress) return;  // a host function that asks
  after_progress((stream != nullptr && run_stream(*stream)) || progress());
}

cudaError_t wait_until(Stream* stream, const std::function<bool()>& done) {
  State& all = state();
  while (!done()) {
    if (all.sticky_error != cudaSuccess) return all.sticky_error;
    if (all.in_progress) return cudaErrorNotPermitted;  // a host function that waits
    after_progress((stream != nullptr && run_stream(*stream)) || done() || progress());
  }
  return all.sticky_error;
}

cudaError_t wait_for_all() {
  run_default_stream();
  return wait_until(nullptr, [] {
    const auto& streams = state().all_streams;
    return std::all_of(
        streams.begin(), streams.end(), [](const auto& s) { return s->queue.empty(); });
  });
}

namespace {

cudaError_t create_stream(cudaStream_t* handle, unsigned flags, int priority) {
  if (handle == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0) {
    return cudaErrorInvalidValue;
  }
  State& all = state();
  all.all_streams.push_back(std::make_unique<Stream>());
  Stream& stream = *all.all_streams.back();
  stream.device = current_device();
  stream.flags = flags;
  stream.priority = priority;
  all.streams.insert(&stream);
  *handle = reinterpret_cast<cudaStream_t>(&stream);
  return cudaSuccess;
}

// A call that asks about or waits for a stream that captures makes the capture worthless.
bool spoils_capture(Stream& stream) {
  if (stream.capture == nullptr) return false;
  stream.capture->invalid = true;
  return true;
}

}  // namespace
}  // namespace emulation

using emulation::entry;
using emulation::Stream;
using emulation::WhileCapturing;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  return entry("cudaStreamCreateWithPriority",
               [&] { return emulation::create_stream(handle, flags, priority); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return entry("cudaStreamCreateWithFlags",
               [&] { return emulation::create_stream(handle, flags, 0); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return entry("cudaDeviceGetStreamPriorityRange", [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

// Work that is left runs all the same.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return emulation::release("cudaStreamDestroy", [&] {
    Stream* stream = emulation::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    emulation::spoils_capture(*stream);
    emulation::State& all = emulation::state();
    all.streams.erase(stream);
    if (stream->queue.empty()) {
      std::erase_if(all.all_streams, [&](const auto& s) { return s.get() == stream; });
    }
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return entry(
      "cudaStreamSynchronize",
      [&] {
        Stream* stream = emulation::find_stream(handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (emulation::spoils_capture(*stream)) return cudaErrorStreamCaptureUnsupported;
        return emulation::wait_until(stream, [&] { return stream->queue.empty(); });
      },
      WhileCapturing::refused);
}

// Answers how things stood before it let the work go on, so that "not yet" is answered too.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return entry(
      "cudaStreamQuery",
      [&] {
        Stream* stream = emulation::find_stream(handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (emulation::spoils_capture(*stream)) return cudaErrorStreamCaptureUnsupported;
        if (stream->queue.empty()) {
          emulation::progress();  // other streams go on, as they would on a device
          return emulation::state().sticky_error;
        }
        emulation::poll(stream);
        const cudaError_t error = emulation::state().sticky_error;
        return error != cudaSuccess ? error : cudaErrorNotReady;
      },
      WhileCapturing::refused);
}

cudaError_t cudaDeviceSynchronize() {
  return entry(
      "cudaDeviceSynchronize", [] { return emulation::wait_for_all(); }, WhileCapturing::refused);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return entry("cudaLaunchHostFunc", [&] {
    Stream* stream = emulation::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (function == nullptr) return cudaErrorInvalidValue;
    return emulation::enqueue_work(*stream, {emulation::Kind::host, [function, data] {
                                               function(data);
                                               return true;
                                             }});
  });
}
