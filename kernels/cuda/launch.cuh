// Starts kernels through a Queue: `launch(queue, kernel, {grid, block, shared_bytes},
// arguments...)` instead of <<<>>>, so that the same .cu file compiles for a device and, in tests,
// for the emulation (tests/cuda_emulation).
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cuda/queue.hpp"

namespace testbed::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic shared memory
};

// Arguments of a kernel (P...), each at its own offset; gaps are zero.
template <typename... P>
struct KernelCall {
  static_assert((std::is_trivially_copyable_v<P> && ...));
  static constexpr std::array<size_t, sizeof...(P) + 1> offsets = [] {
    std::array<size_t, sizeof...(P) + 1> at{};
    constexpr std::array<size_t, sizeof...(P) + 1> sizes{sizeof(P)..., 0};
    constexpr std::array<size_t, sizeof...(P) + 1> alignments{alignof(P)..., 16};
    size_t end = 0;
    for (size_t i = 0; i <= sizeof...(P); ++i) {
      at[i] = (end + alignments[i] - 1) / alignments[i] * alignments[i];
      end = at[i] + sizes[i];
    }
    return at;
  }();

  void (*kernel)(P...);
  LaunchShape shape;
  alignas(16) std::array<std::byte, offsets.back()> bytes;
};

}  // namespace testbed::cuda

// Defines issue_kernel<P...>(const KernelCall<P...>&, cudaStream_t): the device's, or the
// emulation's.
#include "cuda_arch/launch_kernel.cuh"

namespace testbed::cuda {

// n / d, rounded up.
constexpr int64_t divide_up(int64_t n, int64_t d) { return (n + d - 1) / d; }

template <typename... P, typename... A>
KernelCall<P...> kernel_call(void (*kernel)(P...), const LaunchShape& shape, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A));
  KernelCall<P...> call;
  std::memset(static_cast<void*>(&call), 0, sizeof call);
  call.kernel = kernel;
  call.shape = shape;
  size_t i = 0;
  [[maybe_unused]] const auto store = [&](const auto& value) {
    std::memcpy(call.bytes.data() + call.offsets[i++], &value, sizeof value);
  };
  (store(static_cast<P>(arguments)), ...);
  return call;
}

template <typename... P, typename... A>
void launch(Queue& queue, void (*kernel)(P...), const LaunchShape& shape, A&&... arguments) {
  queue.call(&issue_kernel<P...>, kernel_call(kernel, shape, std::forward<A>(arguments)...));
}

}  // namespace testbed::cuda
