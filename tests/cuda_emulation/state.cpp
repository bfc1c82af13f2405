#include "tests/cuda_emulation/state.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace emulation {

uint64_t Order::next() {  // splitmix64
  seed += 0x9e3779b97f4a7c15U;
  uint64_t z = seed;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

namespace {

Order parse_order(const std::string& text) {
  if (text.empty() || text == "forward") return {};
  if (text == "reverse") return {Order::Kind::reverse};
  char* end = nullptr;
  const uint64_t seed = std::strtoull(text.c_str(), &end, 10);
  if (*end != '\0') {
    std::fprintf(stderr,
                 "emulation: TESTBED_EMULATION_ORDER=%s: want forward, reverse or a seed\n",
                 text.c_str());
    std::abort();
  }
  return {Order::Kind::random, seed};
}

}  // namespace

State& state() {
  static State& the_state = *[] {
    auto* made = new State;  // for ever: objects of the program's may be freed after main
    const char* order = std::getenv("TESTBED_EMULATION_ORDER");
    made->order = parse_order(order == nullptr ? "" : order);
    return made;
  }();
  return the_state;
}

void set_order(const std::string& order) {
  const std::lock_guard lock(state().mutex);
  state().order = parse_order(order);
}

cudaError_t remember(cudaError_t code) {
  // What asks "not yet" is told so, and that is no error to keep.
  if (code != cudaSuccess && code != cudaErrorNotReady) state().last_error = code;
  return code;
}

cudaError_t standing_error() {
  static const bool no_driver = [] {
    const char* value = std::getenv("TESTBED_EMULATED_NO_DRIVER");
    return value != nullptr && std::string(value) == "1";
  }();
  if (no_driver) return cudaErrorInsufficientDriver;
  if (n_devices() == 0) return cudaErrorNoDevice;
  return state().sticky_error;
}

cudaError_t refuse_while_capturing() {
  bool refused = false;
  for (const auto& capture : state().captures) {
    const bool bound = capture->mode == cudaStreamCaptureModeGlobal ||
                       (capture->mode == cudaStreamCaptureModeThreadLocal &&
                        capture->by == std::this_thread::get_id());
    if (!bound) continue;
    capture->invalid = true;
    refused = true;
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

void fail_device(const std::string& text) {
  State& all = state();
  all.sticky_error = cudaErrorLaunchFailure;
  all.kernel_failure = text;
  std::fprintf(stderr, "emulation: %s\n", text.c_str());
}

void drop_work() {
  for (const auto& stream : state().all_streams) stream->queue.clear();
  state().on_default_stream.clear();
  for (Event* event : state().events) event->state->n_done = event->state->n_recorded;
}

std::string kernel_failure() {
  const std::lock_guard lock(state().mutex);
  return state().kernel_failure;
}

void reset_errors() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.sticky_error = cudaSuccess;
  all.last_error = cudaSuccess;
  all.kernel_failure.clear();
}

}  // namespace emulation

cudaError_t cudaGetLastError() {
  emulation::State& all = emulation::state();
  const std::lock_guard lock(all.mutex);
  const cudaError_t code = all.last_error;
  all.last_error = all.sticky_error;
  return code;
}

cudaError_t cudaPeekAtLastError() {
  const std::lock_guard lock(emulation::state().mutex);
  return emulation::state().last_error;
}
