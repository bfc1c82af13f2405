// ThreadPool: the threads of one rank. The caller is thread 0. Not OpenMP: sanitizers understand
// it, and how it waits is ours to say: waiting threads spin briefly if the host's ranks fit its
// cores, else they sleep at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace testbed::cpu {

class ThreadPool {
 public:
  ThreadPool(int n_threads, bool may_spin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const;

  // work(thread) on every thread; returns when all are done. An exception of any thread is rethrown
  // here.
  void run(const std::function<void(int)>& work);

  // work(begin, end) over [0, n), cut into one range per thread at multiples of granule. With one
  // thread, or n of at most one granule, the caller does it alone.
  template <typename Work>
  void parallel_for(int64_t n, int64_t granule, Work&& work) {
    const int64_t n_granules = (n + granule - 1) / granule;
    if (n_threads() == 1 || n_granules <= 1) {
      if (n > 0) work(int64_t{0}, n);
      return;
    }
    const int64_t threads = n_threads();
    run([&](int thread) {
      const int64_t begin = n_granules * thread / threads * granule;
      const int64_t end = n_granules * (thread + 1) / threads * granule;
      if (begin < n && begin < end) work(begin, end < n ? end : n);
    });
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace testbed::cpu
