// Streams, events and memory of the emulation: work waits until somebody waits for it, events order
// streams, allocations are bounded and counted, faults come where they are asked for.
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>

#include "kernels/cuda/device_code.cuh"
#include "tests/unit/cuda_emulation_support.hpp"

namespace testbed::cuda {
namespace {

__global__ void set(float* x, float value) { x[threadIdx.x] = value; }
__global__ void add_to(const float* x, float* y) { y[threadIdx.x] += x[threadIdx.x]; }
// Until another process has written the flag.
__global__ void await(const uint32_t* flag, float* x) {
  while (load_acquire_system(flag) == 0) {
  }
  x[0] = 5.0F;
}

using Streams = EmulationTest;
using Memory = EmulationTest;
using Faults = EmulationTest;

float* pinned_floats(Tensor& holder, int64_t n) {
  holder = pinned_tensor(DType::F32, {n});
  return holder.as<float>();
}

TEST_F(Streams, WorkRunsWhenSomebodyWaits) {
  const Stream stream;
  Tensor holder;
  float* host = pinned_floats(holder, 1);
  host[0] = 1.0F;
  const DeviceArray<float> x(1);
  ASSERT_EQ(launch_on(stream.get(), &set, {1, 1}, x.data(), 7.0F), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(host, x.data(), 4, cudaMemcpyDeviceToHost, stream.get()), cudaSuccess);
  EXPECT_EQ(host[0], 1.0F);
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(host[0], 7.0F);
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaSuccess);

  // A pinned source is read when the copy runs, a pageable one when it is asked for.
  float pageable = 2.0F;
  const DeviceArray<float> y(1);
  cudaMemcpyAsync(x.data(), host, 4, cudaMemcpyHostToDevice, stream.get());
  cudaMemcpyAsync(y.data(), &pageable, 4, cudaMemcpyHostToDevice, stream.get());
  host[0] = 8.0F;
  pageable = 3.0F;
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(x.get(), (std::vector<float>{8.0F}));
  EXPECT_EQ(y.get(), (std::vector<float>{2.0F}));
}

TEST_F(Streams, EventsOrderStreams) {
  const Stream first;
  const Stream second;
  const Event event;
  const DeviceArray<float> x(std::vector<float>{1.0F});
  const DeviceArray<float> y(std::vector<float>{0.0F});
  const auto sum_on_second = [&](bool ordered) {
    y.set({0.0F});
    launch_on(first.get(), &set, {1, 1}, x.data(), 10.0F);
    cudaEventRecord(event.get(), first.get());
    if (ordered) cudaStreamWaitEvent(second.get(), event.get(), 0);
    launch_on(second.get(), &add_to, {1, 1}, x.data(), y.data());
    EXPECT_EQ(cudaStreamSynchronize(second.get()), cudaSuccess);
    return y.get()[0];
  };
  EXPECT_EQ(sum_on_second(false), 1.0F);  // the other stream has not come so far
  EXPECT_EQ(sum_on_second(true), 10.0F);
}

TEST_F(Streams, EventsHaveTimes) {
  const Stream stream;
  const Event begin(Event::Kind::timing);
  const Event end(Event::Kind::timing);
  float ms = -1.0F;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin.get(), end.get()), cudaErrorInvalidResourceHandle);
  cudaEventRecord(begin.get(), stream.get());
  ASSERT_EQ(cudaLaunchHostFunc(
                stream.get(), [](void* /*none*/) { usleep(2000); }, nullptr),
            cudaSuccess);
  cudaEventRecord(end.get(), stream.get());
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin.get(), end.get()), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(end.get()), cudaErrorNotReady);
  EXPECT_EQ(cudaEventSynchronize(end.get()), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin.get(), end.get()), cudaSuccess);
  EXPECT_GE(ms, 2.0F);
  const Event untimed;
  cudaEventRecord(untimed.get(), stream.get());
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin.get(), untimed.get()), cudaErrorInvalidResourceHandle);
}

// As late as a device may do it: what is missing between the two shows.
TEST_F(Streams, DoNotWaitForTheDefaultStream) {
  const Stream stream;
  const DeviceArray<float> x(std::vector<float>{1.0F});
  const DeviceArray<float> y(std::vector<float>{0.0F});
  float pageable = 2.0F;
  ASSERT_EQ(cudaMemcpy(x.data(), &pageable, 4, cudaMemcpyHostToDevice), cudaSuccess);
  pageable = 3.0F;  // it has been read
  launch_on(stream.get(), &add_to, {1, 1}, x.data(), y.data());
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(y.get()[0], 1.0F);
  EXPECT_EQ(x.get()[0], 2.0F);

  const auto set_after_fill = [&](cudaStream_t on, bool wait) {
    EXPECT_EQ(cudaMemset(x.data(), 0, 4), cudaSuccess);
    if (wait) {
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    launch_on(on, &set, {1, 1}, x.data(), 7.0F);
    EXPECT_EQ(cudaStreamSynchronize(on), cudaSuccess);
    return x.get()[0];
  };
  EXPECT_EQ(set_after_fill(stream.get(), false), 0.0F);
  EXPECT_EQ(set_after_fill(stream.get(), true), 7.0F);
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault), cudaSuccess);
  EXPECT_EQ(set_after_fill(blocking, false), 7.0F);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(Streams, TheDefaultStreamIsRefused) {
  const DeviceArray<float> x(1);
  EXPECT_EQ(launch_on(nullptr, &set, {1, 1}, x.data(), 0.0F), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Memory, FreshMemoryIsNaNAndCopiesStayInside) {
  const DeviceArray<float> x(5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data()) % 256, 0U);
  for (const float value : x.get()) EXPECT_NE(value, value);
  std::vector<float> host(6);
  EXPECT_EQ(cudaMemcpy(host.data(), x.data(), 24, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), x.data() + 1, 20, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x.data(), host.data(), 20, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x.data(), host.data(), 20, cudaMemcpyHostToDevice), cudaSuccess);
}

TEST_F(Memory, CapacityIsBoundedAndCounted) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, free_bytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(p, nullptr);
  // Large memory is NaN too, without taking pages.
  constexpr size_t n_bytes = size_t{1} << 30;
  ASSERT_EQ(cudaMalloc(&p, n_bytes), cudaSuccess);
  uint32_t last = 0;
  EXPECT_EQ(cudaMemcpy(&last, static_cast<char*>(p) + n_bytes - 4, 4, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(last, 0xffffffffU);
  size_t now_free = 0;
  cudaMemGetInfo(&now_free, &total_bytes);
  EXPECT_EQ(now_free, free_bytes - n_bytes);
  EXPECT_EQ(emulation::live().device_bytes, before_.device_bytes + static_cast<int64_t>(n_bytes));
  EXPECT_EQ(cudaFree(static_cast<char*>(p) + 256), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
}

TEST_F(Memory, AnotherProcessMapsItAndKernelsWaitForItsFlag) {
  const Stream stream;
  const DeviceArray<uint32_t> flag(std::vector<uint32_t>{0, 11});
  const DeviceArray<float> x(std::vector<float>{0.0F});
  cudaIpcMemHandle_t handle;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, flag.data()), cudaSuccess);
  void* own = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&own, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaErrorInvalidValue);  // the same process
  ASSERT_EQ(launch_on(stream.get(), &await, {1, 1}, flag.data(), x.data()), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);  // the host goes on
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    void* p = nullptr;
    bool good = cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    std::array<uint32_t, 2> seen{};
    good = good && cudaMemcpy(seen.data(), p, 8, cudaMemcpyDeviceToHost) == cudaSuccess;
    good = good && seen == std::array<uint32_t, 2>{0, 11};
    const uint32_t one = 1;
    good = good && cudaMemcpy(p, &one, 4, cudaMemcpyHostToDevice) == cudaSuccess;
    good = good && cudaIpcCloseMemHandle(p) == cudaSuccess;
    _exit(good ? 0 : 1);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(x.get()[0], 5.0F);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(Faults, ComeAtTheCallTheyNameAndLeaveNothing) {
  emulation::set_faults("cudaMalloc:2,cudaEventRecord:1:700,cudaMalloc:1@9999");
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 16), cudaSuccess);
  cudaFree(p);
  EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&p, 16), cudaSuccess);
  cudaFree(p);
  const Stream stream;
  const Event event;
  EXPECT_EQ(cudaEventRecord(event.get(), stream.get()), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventRecord(event.get(), stream.get()), cudaSuccess);
  emulation::set_faults("");
  EXPECT_GE(emulation::call_counts().at("cudaMalloc"), 3);
}

TEST_F(Faults, AKernelThatFailsStopsTheDevice) {
  const Stream stream;
  const DeviceArray<float> x(1);
  void* q = nullptr;
  ASSERT_EQ(cudaMalloc(&q, 16), cudaSuccess);
  emulation::set_faults("kernel:1");
  ASSERT_EQ(launch_on(stream.get(), &set, {1, 1}, x.data(), 0.0F), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaErrorLaunchFailure);
  emulation::set_faults("");
  void* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 16), cudaErrorLaunchFailure);
  // What is freed then is not leaked.
  const emulation::Live before = emulation::live();
  EXPECT_EQ(cudaFree(q), cudaErrorLaunchFailure);
  EXPECT_EQ(emulation::live().device_allocations, before.device_allocations - 1);
  emulation::reset_errors();
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
}

}  // namespace
}  // namespace testbed::cuda
