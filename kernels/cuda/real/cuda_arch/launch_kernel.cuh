// How a kernel is started on a device.
#pragma once

namespace testbed::cuda {

template <typename... P>
void issue_kernel(const KernelCall<P...>& call, cudaStream_t stream) {
  constexpr size_t static_limit = size_t{32}
                                  << 10;  // 48 KiB with static memory: beyond, it has to ask
  const auto* kernel = reinterpret_cast<const void*>(call.kernel);
  if (call.shape.shared_bytes > static_limit) {
    check(cudaFuncSetAttribute(kernel,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(call.shape.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  std::array<void*, sizeof...(P) + 1> arguments{};
  for (size_t i = 0; i < sizeof...(P); ++i) {
    arguments[i] = const_cast<std::byte*>(call.bytes.data() + call.offsets[i]);
  }
  check(cudaLaunchKernel(kernel,
                         call.shape.grid,
                         call.shape.block,
                         arguments.data(),
                         call.shape.shared_bytes,
                         stream),
        "cudaLaunchKernel");
}

}  // namespace testbed::cuda
