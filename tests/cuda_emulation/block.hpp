// One block of a kernel: its threads take turns on fibres, those that never wait on one fibre, one
// after another. Which thread runs next is by priority, lowest position first, so that one thread
// gets as far ahead of the others as barriers and collectives let it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_emulation/fibre.hpp"
#include "tests/cuda_emulation/launch.hpp"
#include "tests/cuda_emulation/threads.hpp"

// As kernels see them.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace emulation {

constexpr unsigned max_block_threads = 1024;

// Of threads' positions.
class PositionSet {
 public:
  void clear() { words_.fill(0); }
  void add(unsigned i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  void remove(unsigned i) { words_[i / 64] &= ~(uint64_t{1} << (i % 64)); }
  void fill(unsigned n);
  bool empty() const { return first() == max_block_threads; }
  unsigned first() const;  // max_block_threads if empty
  void take(PositionSet& from);

 private:
  std::array<uint64_t, max_block_threads / 64> words_{};
};

class Block {
 public:
  enum class Outcome : uint8_t { done, polling, failed };

  // The threads of the launch's blocks, and the function of one of them.
  void prepare(const dim3& block, void (*run_thread)(const void*), const void* call);
  void start(const std::vector<unsigned>& order);  // order[position] = thread
  // Until all threads have ended, or none can go on without another process.
  Outcome run();
  const std::string& failure() const { return failure_; }

  // From the thread that runs.
  int barrier(bool predicate, int* n_threads, const Where& where);
  void pause();
  [[noreturn]] void fail(const std::string& text, const Where& where);
  Meeting& meet(unsigned mask,
                const char* name,
                const void* bytes,
                size_t n_bytes,
                void (*finish)(Meeting&),
                const Where& where);
  void leave(Meeting& meeting);
  void copy_async(void* shared, const void* global, size_t n_bytes, bool valid);
  void commit_copies();
  void wait_for_copies(unsigned n_pending);
  // Copies are done when they are issued rather than as late as is allowed.
  bool early_copies = false;

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t n_bytes;
    bool valid;
    unsigned group;
    void run() const;
  };
  enum class State : uint8_t { unstarted, ready, at_barrier, in_meeting, polling, ended };
  struct Thread {
    State state = State::unstarted;
    Fibre* fibre = nullptr;
    Where where;  // it waits
    const char* waits_in = nullptr;
    unsigned mask = 0;
    unsigned n_groups = 0;  // of copies
    std::vector<Copy> copies;
  };
  struct Abandoned {};  // thrown in threads of a block that failed

  static void run_threads();  // of a fibre
  void set_current(unsigned thread);
  void end_thread();
  void wait(State state);
  void make_ready(unsigned thread);
  void release_barrier();
  std::string describe(unsigned thread) const;
  void report_deadlock();
  void abandon();
  Meeting& open_meeting(unsigned mask, const char* name, const Where& where);

  unsigned n_threads_ = 0;
  void (*run_thread_)(const void*) = nullptr;
  const void* call_ = nullptr;
  std::vector<uint3> indices_;  // [thread]
  std::vector<Thread> threads_;
  std::vector<unsigned> order_;     // [position]: thread
  std::vector<unsigned> position_;  // [thread]
  PositionSet ready_;               // or unstarted
  PositionSet polling_;
  unsigned n_ended_ = 0;
  unsigned n_at_barrier_ = 0;
  int n_true_ = 0;
  std::array<int, 2> barrier_result_{};  // true predicates, threads
  Where barrier_where_;
  std::array<std::vector<Meeting*>, max_block_threads / 32> open_;  // [warp]
  std::vector<std::unique_ptr<Meeting>> meetings_;
  std::vector<Meeting*> free_meetings_;
  std::vector<std::unique_ptr<Fibre>> fibres_;
  std::vector<Fibre*> free_fibres_;
  std::string failure_;
  bool abandoned_ = false;
};

// The block that runs; there is one at a time.
Block& the_block();

// faults.cpp: while it is not nullptr, faults are told to be this kernel's.
void report_faults(const char* kernel);

}  // namespace emulation
