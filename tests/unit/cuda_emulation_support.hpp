// What the emulation's own tests share: a queue, arrays on the device, and the order of threads.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/runtime.hpp"
#include "tests/cuda_emulation/emulation.hpp"

namespace testbed::cuda {

// An array on the device; host code reaches it by copies only, as with a real one.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { set(values); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }
  void set(const std::vector<T>& values) const {
    check(cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  std::vector<T> get() const {
    std::vector<T> values(n_);
    check(cudaMemcpy(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t n_;
};

template <typename... P, typename... A>
cudaError_t launch_on(cudaStream_t stream,
                      void (*kernel)(P...),
                      const LaunchShape& shape,
                      A... arguments) {
  const KernelCall<P...> call = kernel_call(kernel, shape, arguments...);
  return emulation::launch_kernel(reinterpret_cast<const void*>(kernel),
                                  {shape.grid, shape.block, shape.shared_bytes},
                                  &EmulatedKernel<P...>::run,
                                  &call,
                                  sizeof call,
                                  stream);
}

// One stream, and nothing left when it ends.
class EmulationTest : public testing::Test {
 protected:
  void SetUp() override { before_ = emulation::live(); }
  void TearDown() override {
    emulation::reset_errors();
    emulation::set_order("forward");
    EXPECT_EQ(emulation::live(), before_);
  }
  emulation::Live before_;
};

inline const std::vector<std::string> all_orders{"forward", "reverse", "1", "2", "3"};

}  // namespace testbed::cuda
