// What the stand-in of the CUDA runtime keeps: streams, events, captures, and how a call of it
// begins and ends. Handles are addresses of these objects.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_emulation/emulation.hpp"

namespace emulation {

struct Capture;

struct EventState {
  bool timing = true;
  int64_t n_recorded = 0;            // calls of record
  int64_t n_done = 0;                // of which the stream has come to
  int64_t done_ns = 0;               // the host's monotonic clock
  const void* stream = nullptr;      // recorded there last
  std::shared_ptr<Capture> capture;  // recorded there last, else null
  std::vector<size_t> after;         // nodes of the capture
};
struct Event {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

enum class Kind : uint8_t { kernel, copy, fill, host, record, wait, graph };
struct Work {
  Kind kind;
  std::function<bool()> run;               // false: not yet
  std::shared_ptr<EventState> event = {};  // of records and waits in graphs
};

struct Node {
  Work work;
  std::vector<size_t> after;  // nodes before it
};
using Nodes = std::vector<Node>;

struct Stream {
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  std::deque<Work> queue;
  std::shared_ptr<Capture> capture;
  std::vector<size_t> after;  // in the capture, what the next node comes after
};

struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id by;
  Stream* origin;
  std::set<Stream*> streams;
  Nodes nodes;
  bool invalid = false;
};
struct Graph {
  Nodes nodes;
};
struct GraphExec {
  std::shared_ptr<const Nodes> nodes;
};

struct Order {
  enum class Kind : uint8_t { forward, reverse, random } kind = Kind::forward;
  uint64_t seed = 0;
  uint64_t next();  // pseudo-random
};

struct State {
  std::recursive_mutex mutex;
  std::set<Stream*> streams;                         // that the program has
  std::vector<std::unique_ptr<Stream>> all_streams;  // also those destroyed with work left
  std::set<Event*> events;
  std::set<Graph*> graphs;
  std::set<GraphExec*> graph_execs;
  std::set<std::shared_ptr<Capture>> captures;
  cudaError_t last_error = cudaSuccess;
  cudaError_t sticky_error = cudaSuccess;  // of a failed kernel
  std::string kernel_failure;
  Order order;
  bool in_progress = false;
  int n_idle_rounds = 0;  // looks at the streams since something went on
  // Of the default stream, which non-blocking streams do not wait for: fills and copies that have
  // returned. They run when something has to wait for them, not before.
  std::deque<std::function<void()>> on_default_stream;
};
State& state();

// Makes the code the last error, if it is one.
cudaError_t remember(cudaError_t code);
// cudaSuccess, or what every call answers without a driver or after a kernel failed.
cudaError_t standing_error();
// What a call that may not be made while this thread captures answers; the captures are then lost.
cudaError_t refuse_while_capturing();

enum class WhileCapturing : uint8_t { allowed, refused };
// A call of the runtime: injected and standing errors first.
template <typename F>
cudaError_t entry(const char* name,
                  F&& body,
                  WhileCapturing rule = WhileCapturing::allowed,
                  cudaError_t injected = cudaErrorUnknown) {
  const std::lock_guard lock(state().mutex);
  if (const auto code = inject(name, injected)) return remember(static_cast<cudaError_t>(*code));
  if (const cudaError_t code = standing_error(); code != cudaSuccess) return remember(code);
  if (rule == WhileCapturing::refused) {
    if (const cudaError_t code = refuse_while_capturing(); code != cudaSuccess) {
      return remember(code);
    }
  }
  return remember(body());
}

// A call that gives something back: it does so after a kernel failed too, so that what a program
// forgets is told from what it could not free.
template <typename F>
cudaError_t release(const char* name, F&& body, WhileCapturing rule = WhileCapturing::allowed) {
  const std::lock_guard lock(state().mutex);
  const cudaError_t sticky = state().sticky_error;
  state().sticky_error = cudaSuccess;
  const cudaError_t code = entry(name, body, rule);
  if (sticky == cudaSuccess) return code;  // it may have waited for a kernel that failed
  state().sticky_error = sticky;
  return remember(sticky);
}

// nullptr if there is none of this handle.
Stream* find_stream(cudaStream_t handle);
std::shared_ptr<EventState> find_event(cudaEvent_t handle);

// On the stream, or as a node of its graph.
cudaError_t enqueue_work(Stream& stream, Work work);
// Runs the stream's work until it is empty or cannot go on; true if anything ran.
bool run_stream(Stream& stream);
void run_default_stream();
// One look: the stream's work, or others' when it cannot go on.
void poll(Stream* stream);
// Until done() or an error: the stream's work, and others' when it cannot go on.
cudaError_t wait_until(Stream* stream, const std::function<bool()>& done);
cudaError_t wait_for_all();
// The device stops for ever, as after a real kernel's failure.
void fail_device(const std::string& text);
// What is left on the streams of a device that stopped.
void drop_work();
// Waits and records of events in a stream outside graphs.
Work record_work(std::shared_ptr<EventState> event, int64_t number);
Work wait_work(std::shared_ptr<EventState> event, int64_t number);
// A launch of a graph: its nodes in an order that their edges allow.
Work graph_work(std::shared_ptr<const Nodes> nodes);

// devices.cpp
int n_devices();
int current_device();
int physical_device(int device);
int64_t device_bytes();
int compute_capability();  // 90

}  // namespace emulation
