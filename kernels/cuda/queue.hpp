// Queue: the one way to put work on a device's streams. A call is a function and its arguments by
// value. Outside a section it is issued at once. Within a replayed section calls are written to a
// tape: when the tape equals the one that a graph was captured from, the graph is launched, else it
// is captured again. So a graph can only ever replay what eager work would have done, and the
// host's side of the step (costs, positions, block tables) runs every time.
//
// What changes from step to step (positions, block tables, counts) goes into Arguments, whose
// device addresses stay; a value in a call's arguments is part of the graph.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/cuda/arguments.hpp"
#include "kernels/cuda/runtime.hpp"

namespace testbed::cuda {

struct GraphStats {
  int64_t replays = 0;
  int64_t captures = 0;
  int64_t recaptures = 0;  // a section whose calls changed under an equal key
};

class Queue {
 public:
  Queue();
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  cudaStream_t stream() const { return compute_.get(); }
  // Host arrays for the device; the addresses may be given to calls on the compute stream.
  Arguments& arguments() { return arguments_; }

  // issue(args, on) enqueues work on the stream `on` (default: the compute stream). Args is
  // trivially copyable; fill it from `Args a{}`, so that padding is zero: equal calls must have
  // equal bytes. issue throws on errors.
  template <typename Args>
  void call(void (*issue)(const Args&, cudaStream_t), const Args& args, cudaStream_t on = nullptr) {
    static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= 16);
    if (on == nullptr) on = stream();
    ++n_calls_;
    if (!taping_) {
      issue(args, on);
      return;
    }
    Task task{.run = &run_task<Args>, .issue = nullptr, .stream = on};
    static_assert(sizeof(issue) == sizeof(task.issue));
    std::memcpy(&task.issue, &issue, sizeof issue);
    tape(task, &args, sizeof(Args));
  }

  // `to` waits for what has been enqueued on `from`; the event must live as long as the queue's
  // graphs. Either may be a stream of a communicator's.
  void order(cudaStream_t from, cudaEvent_t event, cudaStream_t to);
  // Its two halves: the event is what has been enqueued on `from`; `to` waits for that.
  void record(cudaEvent_t event, cudaStream_t from);
  void hold(cudaStream_t to, cudaEvent_t event);

  // A piece of a step. key != 0: it may be a graph, and equal keys are of equally shaped work. The
  // first time its calls are issued as they come (libraries set themselves up), the second time
  // before_capture is called and they are captured. key 0: always eager. Sections do not nest.
  void section(uint64_t key,
               const std::function<void()>& work,
               const std::function<void()>& before_capture = {});
  // Whether calls are being written to a tape: nothing may wait for the device then.
  bool taping() const { return taping_; }
  // Since forget_graphs().
  const GraphStats& stats() const { return stats_; }
  // Device memory that calls so far may use and later ones will not: freed once those on the tape
  // have been issued.
  void retire(Tensor memory) {
    if (taping_) retired_.push_back(std::move(memory));
  }
  void forget_graphs();

  // Waits until the compute stream has done all that was enqueued, polling the watchers. Not while
  // taping.
  void synchronize();
  void wait(cudaEvent_t event);
  // Called every few milliseconds of a wait, with its seconds so far, and at its end, with 0:
  // throws if the wait is or was in vain (a communicator's asynchronous error, a deadline). Returns
  // a handle for remove_watcher.
  int add_watcher(std::function<void(double)> watcher);
  void remove_watcher(int handle);
  // For waits for something else than the device: sees whether it has ended meanwhile, and asks the
  // watchers now and then.
  void look();

  // Of sections, from 1; 0 outside of them.
  int64_t section_number() const { return arguments_.in_section() ? n_sections_ : 0; }
  // Calls so far: equal counts mean that nothing was enqueued between.
  int64_t n_calls() const { return n_calls_; }
  // Whether the last of them is known to have ended: nothing was enqueued since synchronize(), or
  // since look() found nothing to do.
  bool idle() const { return n_calls_ == n_calls_done_; }

 private:
  struct Task {
    void (*run)(const Task&, const std::byte* args);
    void* issue;  // the typed function
    cudaStream_t stream;
    int64_t offset = 0;  // of its arguments in the tape's bytes
    int64_t n_bytes = 0;
  };
  struct Tape {
    std::vector<Task> tasks;
    std::vector<std::byte> bytes;
    void clear() {
      tasks.clear();
      bytes.clear();
    }
    bool operator==(const Tape& o) const;
    void issue() const;
  };
  struct Graph {
    Tape tape;
    cudaGraphExec_t exec = nullptr;
    bool seen = false;  // has run eagerly
  };

  template <typename Args>
  static void run_task(const Task& task, const std::byte* bytes) {
    void (*issue)(const Args&, cudaStream_t) = nullptr;
    std::memcpy(&issue, &task.issue, sizeof issue);
    alignas(16) Args args;
    std::memcpy(&args, bytes, sizeof args);
    issue(args, task.stream);
  }
  void tape(Task task, const void* args, size_t n_bytes);
  void replay(Graph& graph, const std::function<void()>& before_capture);
  void capture(Graph& graph);
  void poll(double seconds);

  Stream compute_;
  Arguments arguments_;
  Event done_;
  bool taping_ = false;
  Tape tape_;
  std::map<uint64_t, Graph> graphs_;
  GraphStats stats_;
  std::vector<Tensor> retired_;
  std::map<int, std::function<void(double)>> watchers_;
  int next_watcher_ = 0;
  int64_t last_look_ns_ = 0;
  int64_t n_calls_ = 0;
  int64_t n_sections_ = 0;
  int64_t n_calls_done_ = 0;
};

}  // namespace testbed::cuda
