#include "kernels/cuda/queue.hpp"

#include <algorithm>
#include <thread>

#include "kernels/base/clock.hpp"

namespace testbed::cuda {
namespace {

struct RecordArgs {
  cudaEvent_t event;
};
void issue_record(const RecordArgs& args, cudaStream_t on) {
  check(cudaEventRecord(args.event, on), "cudaEventRecord");
}
void issue_wait(const RecordArgs& args, cudaStream_t on) {
  check(cudaStreamWaitEvent(on, args.event, 0), "cudaStreamWaitEvent");
}

void destroy(cudaGraphExec_t& exec) {
  if (exec != nullptr) check_quietly(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  exec = nullptr;
}

}  // namespace

Queue::Queue() : arguments_(compute_.get(), [this](cudaEvent_t event) { wait(event); }) {}

Queue::~Queue() { forget_graphs(); }

bool Queue::Tape::operator==(const Tape& o) const {
  return bytes == o.bytes && std::equal(tasks.begin(),
                                        tasks.end(),
                                        o.tasks.begin(),
                                        o.tasks.end(),
                                        [](const Task& a, const Task& b) {
                                          return a.issue == b.issue && a.stream == b.stream &&
                                                 a.offset == b.offset;
                                        });
}

void Queue::Tape::issue() const {
  for (const Task& task : tasks) task.run(task, bytes.data() + task.offset);
}

void Queue::tape(Task task, const void* args, size_t n_bytes) {
  constexpr size_t alignment = 16;
  const size_t begin = (tape_.bytes.size() + alignment - 1) / alignment * alignment;
  task.offset = static_cast<int64_t>(begin);
  tape_.bytes.resize(begin + n_bytes);
  std::memcpy(tape_.bytes.data() + begin, args, n_bytes);
  tape_.tasks.push_back(task);
}

void Queue::order(cudaStream_t from, cudaEvent_t event, cudaStream_t to) {
  record(event, from);
  hold(to, event);
}

void Queue::record(cudaEvent_t event, cudaStream_t from) {
  call(&issue_record, RecordArgs{event}, from);
}

void Queue::hold(cudaStream_t to, cudaEvent_t event) { call(&issue_wait, RecordArgs{event}, to); }

void Queue::section(uint64_t key,
                    const std::function<void()>& work,
                    const std::function<void()>& before_capture) {
  CHECK(!taping_);
  arguments_.begin_section(/*deferred=*/key != 0);
  ++n_sections_;
  if (key == 0) {
    work();
  } else {
    tape_.clear();
    taping_ = true;
    try {
      work();
    } catch (...) {
      taping_ = false;
      throw;
    }
    taping_ = false;
    arguments_.upload();
    replay(graphs_[key], before_capture);
  }
  arguments_.end_section();
  retired_.clear();
}

void Queue::replay(Graph& graph, const std::function<void()>& before_capture) {
  if (!graph.seen) {
    graph.seen = true;
    tape_.issue();
    return;
  }
  if (graph.exec == nullptr) {
    if (before_capture) before_capture();
    capture(graph);
    ++stats_.captures;
  } else if (!(graph.tape == tape_)) {
    capture(graph);
    ++stats_.recaptures;
  } else {
    ++stats_.replays;
  }
  check(cudaGraphLaunch(graph.exec, compute_.get()), "cudaGraphLaunch");
}

void Queue::capture(Graph& graph) {
  destroy(graph.exec);
  cudaGraph_t captured = nullptr;
  check(cudaStreamBeginCapture(compute_.get(), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  try {
    tape_.issue();
  } catch (...) {
    cudaStreamEndCapture(compute_.get(), &captured);  // what it says is about the same failure
    if (captured != nullptr) cudaGraphDestroy(captured);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(compute_.get(), &captured), "cudaStreamEndCapture");
  const cudaError_t made = cudaGraphInstantiate(&graph.exec, captured, 0);
  check_quietly(cudaGraphDestroy(captured), "cudaGraphDestroy");
  if (made != cudaSuccess) graph.exec = nullptr;
  check(made, "cudaGraphInstantiate");
  std::swap(graph.tape, tape_);
}

void Queue::forget_graphs() {
  for (auto& [key, graph] : graphs_) destroy(graph.exec);
  graphs_.clear();
  stats_ = {};
}

void Queue::synchronize() {
  CHECK(!taping_);
  check(cudaEventRecord(done_.get(), compute_.get()), "cudaEventRecord");
  wait(done_.get());
  n_calls_done_ = n_calls_;
}

void Queue::wait(cudaEvent_t event) {
  constexpr double spin_s = 0.002;
  constexpr double period_s = 0.005;
  const int64_t begin_ns = now_ns();
  double next_poll_s = period_s;
  while (true) {
    const cudaError_t code = cudaEventQuery(event);
    // Work may have given up and ended (a kernel that waited for a peer in vain).
    if (code == cudaSuccess) return poll(0.0);
    if (code != cudaErrorNotReady) check(code, "cudaEventQuery");
    const double seconds = static_cast<double>(now_ns() - begin_ns) * 1e-9;
    if (seconds > spin_s) std::this_thread::yield();
    if (seconds < next_poll_s) continue;
    next_poll_s = seconds + period_s;
    poll(seconds);
  }
}

int Queue::add_watcher(std::function<void(double)> watcher) {
  watchers_.emplace(next_watcher_, std::move(watcher));
  return next_watcher_++;
}

void Queue::remove_watcher(int handle) { watchers_.erase(handle); }

void Queue::look() {
  constexpr int64_t period_ns = 5'000'000;
  const cudaError_t code = cudaStreamQuery(stream());
  if (code != cudaErrorNotReady) {
    check(code, "cudaStreamQuery");
    n_calls_done_ = n_calls_;
  }
  const int64_t now = now_ns();
  if (now - last_look_ns_ < period_ns) return;
  last_look_ns_ = now;
  poll(0.0);
}

void Queue::poll(double seconds) {
  for (const auto& [handle, watcher] : watchers_) watcher(seconds);
}

}  // namespace testbed::cuda
