// Starting kernels on the emulation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace emulation {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
};

// Beyond it a kernel has to ask with cudaFuncSetAttribute.
constexpr size_t static_limit_of_shared_bytes = size_t{48} << 10;

// As cudaLaunchKernel, by whose name it is counted. run_thread is called once for each thread, with
// a 16-byte aligned copy of the n_bytes at `call`.
cudaError_t launch_kernel(const void* kernel,
                          const LaunchShape& shape,
                          void (*run_thread)(const void* call),
                          const void* call,
                          size_t n_bytes,
                          cudaStream_t stream);

}  // namespace emulation
