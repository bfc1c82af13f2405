// Copies and fills of the tests of the CUDA device that have reached it when they return: those of
// the default stream may still be on their way, and queues' streams do not wait for that one.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime.hpp"

namespace testbed::cuda {

inline void copy_to_device(const void* host, TensorView device) {
  if (device.n_bytes() == 0) return;
  check(cudaMemcpy(
            device.data(), host, static_cast<size_t>(device.n_bytes()), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

inline void fill_bytes(TensorView device, int byte) {
  check(cudaMemset(device.data(), byte, static_cast<size_t>(device.n_bytes())), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace testbed::cuda
