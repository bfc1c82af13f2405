// Kernels on the emulation: what is right agrees with a loop on the host in every order of threads,
// what breaks a rule of the device is caught.
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "kernels/cuda/device_code.cuh"
#include "tests/unit/cuda_emulation_support.hpp"

namespace testbed::cuda {
namespace {

using testing::HasSubstr;

// out[row] = x[row] / sqrt(mean of squares): a barrier and shuffles.
__global__ void normalise(const float* x, int n, float* out) {
  __shared__ float scratch[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * n;
  float sum = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    sum += x[row + i] * x[row + i];
  }
  const float scale = rsqrtf(block_sum(sum, scratch) / static_cast<float>(n));
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    out[row + i] = x[row + i] * scale;
  }
}

// Reverses within the block through shared memory, with or without waiting for the others.
template <bool waits>
__global__ void reverse(const float* x, float* out) {
  __shared__ float shared[128];
  shared[threadIdx.x] = x[threadIdx.x];
  if (waits) __syncthreads();
  out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// A wave through the block: the second use of `shared` must not begin before the first has ended.
template <bool waits>
__global__ void shift_twice(float* x) {
  __shared__ float shared[128];
  for (int step = 0; step < 2; ++step) {
    shared[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
    if (waits) __syncthreads();
  }
}

__global__ void write_at(float* x, int i) { x[i] = 1.0F; }
__global__ void barrier_for_some() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void barrier_and_shuffle(float* x) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    x[0] = __shfl_xor_sync(all_lanes, x[0], 1);
    if (threadIdx.x == 32) __syncwarp();
  }
}
__global__ void shuffle_of_half(float* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(all_lanes, x[threadIdx.x], 1);
}
__global__ void early_end(float* x, int n) {
  if (static_cast<int>(threadIdx.x) >= n)
    return;  // legal: those that have ended are not waited for
  x[threadIdx.x] = 1.0F;
  __syncthreads();
  x[threadIdx.x] += 1.0F;
}
// Shared memory as the block finds it; leaves ones if it is told to.
__global__ void look(float* fixed, float* dynamic, bool writes) {
  __shared__ float of_the_kernel[32];
  auto* of_the_launch = dynamic_shared<float>();
  fixed[threadIdx.x] = of_the_kernel[threadIdx.x];
  dynamic[threadIdx.x] = of_the_launch[threadIdx.x];
  if (writes) of_the_kernel[threadIdx.x] = of_the_launch[threadIdx.x] = 1.0F;
}

class Kernels : public EmulationTest {
 protected:
  cudaError_t run(const std::function<cudaError_t(cudaStream_t)>& launch) {
    const cudaError_t code = launch(stream_.get());
    return code != cudaSuccess ? code : cudaStreamSynchronize(stream_.get());
  }
  Stream stream_;
};

std::vector<float> ramp(size_t n) {
  std::vector<float> x(n);
  std::iota(x.begin(), x.end(), 1.0F);
  return x;
}

TEST_F(Kernels, SumsOverABlockEqualALoopOnTheHost) {
  constexpr int n = 1000;
  constexpr int n_rows = 3;
  std::vector<float> x(static_cast<size_t>(n) * n_rows);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6.0F;
  const DeviceArray<float> in(x);
  const DeviceArray<float> out(x.size());
  for (const std::string& order : all_orders) {
    emulation::set_order(order);
    ASSERT_EQ(run([&](cudaStream_t s) {
                return launch_on(s, &normalise, {n_rows, 256}, in.data(), n, out.data());
              }),
              cudaSuccess);
    const std::vector<float> got = out.get();
    for (size_t row = 0; row < n_rows; ++row) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += std::pow(double{x[row * n + i]}, 2);
      for (size_t i = 0; i < n; ++i) {
        const double want = x[row * n + i] / std::sqrt(sum / n);
        // Whole squares below 2^24 are summed exactly; then a division, 1/sqrt, and a product.
        ASSERT_NEAR(got[row * n + i], want, 4 * std::abs(want) * 0x1p-24) << order << ' ' << i;
      }
    }
  }
}

TEST_F(Kernels, AMissingBarrierShowsInSomeOrder) {
  const std::vector<float> x = ramp(128);
  const std::vector<float> want(x.rbegin(), x.rend());
  const DeviceArray<float> in(x);
  const DeviceArray<float> out(x.size());
  int n_wrong = 0;
  for (const char* order : {"forward", "reverse"}) {
    emulation::set_order(order);
    ASSERT_EQ(run([&](cudaStream_t s) {
                return launch_on(s, &reverse<false>, {1, 128}, in.data(), out.data());
              }),
              cudaSuccess);
    n_wrong += out.get() != want ? 1 : 0;
  }
  EXPECT_GE(n_wrong, 1);
  for (const std::string& order : all_orders) {
    emulation::set_order(order);
    ASSERT_EQ(run([&](cudaStream_t s) {
                return launch_on(s, &reverse<true>, {1, 128}, in.data(), out.data());
              }),
              cudaSuccess);
    EXPECT_EQ(out.get(), want) << order;
  }
}

TEST_F(Kernels, AMissingBarrierBeforeSharedMemoryIsUsedAgainShowsInSomeOrder) {
  const std::vector<float> x = ramp(128);
  std::vector<float> want(x.size());
  for (size_t i = 0; i < x.size(); ++i) want[i] = x[(i + 2) % x.size()];
  const DeviceArray<float> y(x.size());
  int n_wrong = 0;
  for (const std::string& order : all_orders) {
    emulation::set_order(order);
    for (const auto kernel : {&shift_twice<false>, &shift_twice<true>}) {
      y.set(x);
      ASSERT_EQ(run([&](cudaStream_t s) {
                  return launch_on(s, kernel, {1, 128}, y.data());
                }),
                cudaSuccess);
      if (kernel == &shift_twice<true>) {
        EXPECT_EQ(y.get(), want) << order;
      } else {
        n_wrong += y.get() != want ? 1 : 0;
      }
    }
  }
  EXPECT_GE(n_wrong, 1);
}

TEST_F(Kernels, SharedMemoryIsNaNAtFirst) {
  const DeviceArray<float> fixed(ramp(32));
  const DeviceArray<float> dynamic(ramp(32));
  for (const bool writes : {true, false}) {  // what the first launch leaves is gone
    ASSERT_EQ(run([&](cudaStream_t s) {
                return launch_on(s, &look, {1, 32, 128}, fixed.data(), dynamic.data(), writes);
              }),
              cudaSuccess);
    EXPECT_THAT(fixed.get(), testing::Each(testing::IsNan()));
    EXPECT_THAT(dynamic.get(), testing::Each(testing::IsNan()));
  }
}

TEST_F(Kernels, ABarrierThatNotAllReachIsReported) {
  EXPECT_EQ(run([&](cudaStream_t s) {
              return launch_on(s, &barrier_for_some, {1, 32});
            }),
            cudaErrorLaunchFailure);
  EXPECT_THAT(emulation::kernel_failure(), HasSubstr("at another __syncthreads"));
  // As on a real device nothing works any more.
  EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaErrorLaunchFailure);
  emulation::reset_errors();

  const DeviceArray<float> x(ramp(64));
  EXPECT_EQ(run([&](cudaStream_t s) {
              return launch_on(s, &barrier_and_shuffle, {1, 64}, x.data());
            }),
            cudaErrorLaunchFailure);
  EXPECT_THAT(emulation::kernel_failure(), HasSubstr("thread (32, 0, 0) of block (0, 0, 0)"));
  EXPECT_THAT(emulation::kernel_failure(), HasSubstr("__syncwarp at "));
  emulation::reset_errors();
}

TEST_F(Kernels, ALaneThatDoesNotComeIsReported) {
  const DeviceArray<float> x(ramp(32));
  EXPECT_EQ(run([&](cudaStream_t s) {
              return launch_on(s, &shuffle_of_half, {1, 32}, x.data());
            }),
            cudaErrorLaunchFailure);
  EXPECT_THAT(emulation::kernel_failure(), HasSubstr("__shfl_xor_sync"));
  EXPECT_THAT(emulation::kernel_failure(), HasSubstr("mask ffffffff"));
  emulation::reset_errors();
}

TEST_F(Kernels, ThreadsThatHaveEndedAreNotWaitedFor) {
  const DeviceArray<float> x(ramp(64));
  ASSERT_EQ(run([&](cudaStream_t s) {
              return launch_on(s, &early_end, {1, 64}, x.data(), 40);
            }),
            cudaSuccess);
  const std::vector<float> got = x.get();
  EXPECT_EQ(got[39], 2.0F);
  EXPECT_EQ(got[40], 41.0F);
}

using KernelsDeathTest = Kernels;

TEST_F(KernelsDeathTest, AWriteOnePastTheBufferIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // 64 floats end at a page that faults; after 65 there is padding up to 256 bytes, which is
  // checked.
  const auto write_past = [this](int n) {
    const DeviceArray<float> x(static_cast<size_t>(n));
    run([&](cudaStream_t s) { return launch_on(s, &write_at, {1, 1}, x.data(), n); });
  };
#ifdef __SANITIZE_ADDRESS__
  EXPECT_DEATH(write_past(64), "AddressSanitizer");
#else
  EXPECT_DEATH(
      write_past(64),
      "write_at.*thread .0, 0, 0. of block .0, 0, 0. accessed .*, 256 bytes after the start "
      "of the 256 bytes");
#endif
  EXPECT_DEATH(write_past(65), "past the end of the 260 bytes|AddressSanitizer");
}

TEST_F(Kernels, LaunchesAreChecked) {
  const DeviceArray<float> x(ramp(1));
  const auto launch = [&](const LaunchShape& shape) {
    return run([&](cudaStream_t s) { return launch_on(s, &write_at, shape, x.data(), 0); });
  };
  EXPECT_EQ(launch({1, 1025}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch({0, 32}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch({dim3(1, 65536), 32}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch({1, 32, (48 << 10) + 1}), cudaErrorInvalidValue);
  const auto* kernel = reinterpret_cast<const void*>(&write_at);
  constexpr auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(cudaFuncSetAttribute(kernel, limit, (227 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, limit, 227 << 10), cudaSuccess);
  EXPECT_EQ(launch({1, 32, 227 << 10}), cudaSuccess);
}

}  // namespace
}  // namespace testbed::cuda
