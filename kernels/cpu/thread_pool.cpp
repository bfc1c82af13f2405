#include "kernels/cpu/thread_pool.hpp"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/check.hpp"
#include "kernels/base/clock.hpp"

namespace testbed::cpu {
namespace {

// Longer than the gap between two ops of a decode step, short beside a scheduler's time slice.
constexpr int64_t spin_ns = 40'000;

void pause_cpu() { __builtin_ia32_pause(); }

// Spins for at most spin_ns; true if done() held.
template <typename Done>
bool spin_until(const Done& done) {
  const int64_t deadline = now_ns() + spin_ns;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause_cpu();
    }
  } while (now_ns() < deadline);
  return done();
}

// Waits until done(value), which it returns: spins first if it may, then sleeps in the kernel.
template <typename Done>
int wait_until(const std::atomic<int>& value, bool may_spin, const Done& done) {
  if (may_spin) spin_until([&] { return done(value.load(std::memory_order_acquire)); });
  int seen = value.load(std::memory_order_acquire);
  while (!done(seen)) {
    value.wait(seen, std::memory_order_acquire);
    seen = value.load(std::memory_order_acquire);
  }
  return seen;
}

}  // namespace

struct ThreadPool::State {
  // On a line of their own each: one is written by the caller and read by all, the other the other
  // way round.
  alignas(64) std::atomic<int> generation{0};
  alignas(64) std::atomic<int> n_busy{0};
  // Written before generation is advanced, read after it was seen to.
  alignas(64) const std::function<void(int)>* work = nullptr;
  const int n_threads;
  const bool may_spin;
  bool stop = false;
  std::atomic<bool> running{false};
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  State(int threads, bool spin) : n_threads(threads), may_spin(spin) {}

  void call(int thread) {
    try {
      (*work)(thread);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void worker(int thread) {
    for (int seen = 0;;) {
      seen = wait_until(generation, may_spin, [seen](int now) { return now != seen; });
      if (stop) return;
      call(thread);
      if (n_busy.fetch_sub(1, std::memory_order_acq_rel) == 1) n_busy.notify_one();
    }
  }

  void advance() {
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }

  void join() {
    stop = true;
    advance();
    for (std::thread& thread : workers) thread.join();
  }
};

ThreadPool::ThreadPool(int n_threads, bool may_spin) {
  CHECK(n_threads >= 1);
  state_ = std::make_unique<State>(n_threads, may_spin);
  try {
    for (int thread = 1; thread < n_threads; ++thread) {
      state_->workers.emplace_back([state = state_.get(), thread] { state->worker(thread); });
    }
  } catch (...) {
    state_->join();
    throw;
  }
}

ThreadPool::~ThreadPool() { state_->join(); }

int ThreadPool::n_threads() const { return state_->n_threads; }

void ThreadPool::run(const std::function<void(int)>& work) {
  State& state = *state_;
  if (state.n_threads == 1) {
    work(0);
    return;
  }
  CHECK(!state.running.exchange(true, std::memory_order_acquire));  // not reentrant
  state.work = &work;
  state.n_busy.store(state.n_threads - 1, std::memory_order_relaxed);
  state.advance();
  state.call(0);
  wait_until(state.n_busy, state.may_spin, [](int busy) { return busy == 0; });
  const std::exception_ptr error = std::exchange(state.error, nullptr);
  state.running.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

}  // namespace testbed::cpu
