// How a kernel is started on the emulation: its arguments by value, its threads as calls of a
// function that finds them again.
#pragma once

#include "tests/cuda_emulation/launch.hpp"

namespace testbed::cuda {

template <typename... P>
struct EmulatedKernel {
  // One thread.
  static void run(const void* call) {
    run(*static_cast<const KernelCall<P...>*>(call), std::index_sequence_for<P...>{});
  }

 private:
  template <size_t... i>
  static void run(const KernelCall<P...>& call, std::index_sequence<i...> /*which*/) {
    call.kernel(argument<P>(call.bytes.data() + KernelCall<P...>::offsets[i])...);
  }
  template <typename T>
  static T argument(const std::byte* bytes) {
    alignas(T) std::array<std::byte, sizeof(T)> copy;
    std::memcpy(copy.data(), bytes, sizeof(T));
    return *reinterpret_cast<const T*>(copy.data());
  }
};

template <typename... P>
void issue_kernel(const KernelCall<P...>& call, cudaStream_t stream) {
  const auto* kernel = reinterpret_cast<const void*>(call.kernel);
  if (call.shape.shared_bytes > emulation::static_limit_of_shared_bytes) {
    check(cudaFuncSetAttribute(kernel,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(call.shape.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  const emulation::LaunchShape shape{call.shape.grid, call.shape.block, call.shape.shared_bytes};
  check(emulation::launch_kernel(
            kernel, shape, &EmulatedKernel<P...>::run, &call, sizeof call, stream),
        "cudaLaunchKernel");
}

}  // namespace testbed::cuda
