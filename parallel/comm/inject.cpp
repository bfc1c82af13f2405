#include "parallel/comm/inject.hpp"

#include <chrono>
#include <thread>

#include "kernels/base/check.hpp"
#include "kernels/base/clock.hpp"

namespace testbed {

std::function<void()> delay_hook(int64_t delay_us, int64_t every, bool may_spin) {
  CHECK(delay_us >= 0 && every > 0);
  return [=, n_calls = int64_t{0}]() mutable {
    if (n_calls++ % every != 0) return;
    if (!may_spin) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      return;
    }
    const int64_t end_ns = now_ns() + delay_us * 1000;
    while (now_ns() < end_ns) {
    }
  };
}

}  // namespace testbed
