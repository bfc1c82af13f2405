// CUDA graphs of the emulation: what is captured, replayed, refused.
#include <unistd.h>

#include "kernels/cuda/device_code.cuh"
#include "tests/unit/cuda_emulation_support.hpp"

namespace testbed::cuda {
namespace {

__global__ void set(float* x, float value) { x[0] = value; }
__global__ void add_to(const float* x, float* y) { y[0] += x[0]; }
__global__ void scale(float* x, float factor) { x[0] *= factor; }

class Graphs : public EmulationTest {
 protected:
  // What `work` puts on the stream, as a graph; begins and ends the capture.
  cudaGraphExec_t captured(const std::function<void()>& work) {
    EXPECT_EQ(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    work();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_.get(), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
  }
  void launch_and_wait(cudaGraphExec_t exec) {
    EXPECT_EQ(cudaGraphLaunch(exec, stream_.get()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  }
  // Ends a capture that came to nothing.
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t code = cudaStreamEndCapture(stream_.get(), &graph);
    EXPECT_EQ(graph, nullptr);
    return code;
  }
  Stream stream_;
  Stream side_;
  Event fork_;
  Event join_;
};

TEST_F(Graphs, ReplayWithUpdatedMemory) {
  const DeviceArray<float> x(std::vector<float>{2.0F});
  const DeviceArray<float> y(std::vector<float>{0.0F});
  cudaGraphExec_t exec = captured([&] {
    launch_on(stream_.get(), &add_to, {1, 1}, x.data(), y.data());
    launch_on(stream_.get(), &scale, {1, 1}, y.data(), 10.0F);
  });
  EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_EQ(y.get()[0], 0.0F);  // captured, not run
  launch_and_wait(exec);
  EXPECT_EQ(y.get()[0], 20.0F);
  x.set({3.0F});
  launch_and_wait(exec);
  EXPECT_EQ(y.get()[0], 230.0F);
  cudaGraphExecDestroy(exec);
}

TEST_F(Graphs, TwoStreamsForkAndJoin) {
  const DeviceArray<float> x(std::vector<float>{0.0F});
  const DeviceArray<float> y(std::vector<float>{1.0F});
  for (const std::string& order : all_orders) {
    emulation::set_order(order);
    y.set({1.0F});
    // x and y are set apart, then the one is added to the other.
    cudaGraphExec_t exec = captured([&] {
      launch_on(stream_.get(), &set, {1, 1}, x.data(), 3.0F);
      cudaEventRecord(fork_.get(), stream_.get());
      EXPECT_EQ(cudaStreamWaitEvent(side_.get(), fork_.get(), 0), cudaSuccess);
      launch_on(side_.get(), &scale, {1, 1}, x.data(), 2.0F);
      launch_on(stream_.get(), &scale, {1, 1}, y.data(), 10.0F);
      cudaEventRecord(join_.get(), side_.get());
      EXPECT_EQ(cudaStreamWaitEvent(stream_.get(), join_.get(), 0), cudaSuccess);
      launch_on(stream_.get(), &add_to, {1, 1}, x.data(), y.data());
    });
    launch_and_wait(exec);
    EXPECT_EQ(y.get()[0], 16.0F) << order;
    cudaGraphExecDestroy(exec);
  }
}

TEST_F(Graphs, AMissingEdgeShowsInSomeOrder) {
  const DeviceArray<float> x(std::vector<float>{0.0F});
  const DeviceArray<float> y(std::vector<float>{1.0F});
  int n_wrong = 0;
  for (const char* order : {"forward", "reverse"}) {
    emulation::set_order(order);
    x.set({0.0F});
    cudaGraphExec_t exec = captured([&] {
      cudaEventRecord(fork_.get(), stream_.get());
      cudaStreamWaitEvent(side_.get(), fork_.get(), 0);
      launch_on(stream_.get(), &set, {1, 1}, x.data(), 3.0F);
      launch_on(side_.get(), &scale, {1, 1}, x.data(), 2.0F);  // of what the other stream sets
      cudaEventRecord(join_.get(), side_.get());
      cudaStreamWaitEvent(stream_.get(), join_.get(), 0);
    });
    launch_and_wait(exec);
    n_wrong += x.get()[0] != 6.0F ? 1 : 0;
    cudaGraphExecDestroy(exec);
  }
  EXPECT_EQ(n_wrong, 1);
}

TEST_F(Graphs, ExternalEventsAreRecordedAtEachLaunch) {
  const Event begin(Event::Kind::timing);
  const Event end(Event::Kind::timing);
  EXPECT_EQ(cudaEventRecordWithFlags(begin.get(), stream_.get(), cudaEventRecordExternal),
            cudaErrorInvalidValue);  // invalid outside of captures
  cudaGraphExec_t exec = captured([&] {
    EXPECT_EQ(cudaEventRecordWithFlags(begin.get(), stream_.get(), cudaEventRecordExternal),
              cudaSuccess);
    cudaLaunchHostFunc(
        stream_.get(), [](void* /*none*/) { usleep(1000); }, nullptr);
    cudaEventRecordWithFlags(end.get(), stream_.get(), cudaEventRecordExternal);
  });
  const Event before(Event::Kind::timing);
  for (int launch = 0; launch < 2; ++launch) {
    cudaEventRecord(before.get(), stream_.get());
    EXPECT_EQ(cudaGraphLaunch(exec, stream_.get()), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(end.get()), cudaErrorNotReady);
    EXPECT_EQ(cudaEventSynchronize(end.get()), cudaSuccess);
    float ms = 0;
    EXPECT_EQ(cudaEventElapsedTime(&ms, begin.get(), end.get()), cudaSuccess);
    EXPECT_GE(ms, 1.0F);
    EXPECT_EQ(cudaEventElapsedTime(&ms, before.get(), begin.get()), cudaSuccess);
    EXPECT_GE(ms, 0.0F);  // of this launch
  }
  cudaGraphExecDestroy(exec);
}

TEST_F(Graphs, ALaunchIsUpdatedByAGraphOfTheSameShapeOnly) {
  const DeviceArray<float> x(std::vector<float>{0.0F});
  const auto graph_of = [&](float value, int n) {
    cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < n; ++i) launch_on(stream_.get(), &set, {1, 1}, x.data(), value);
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_.get(), &graph);
    return graph;
  };
  cudaGraph_t first = graph_of(1.0F, 1);
  cudaGraph_t second = graph_of(2.0F, 1);
  cudaGraph_t longer = graph_of(3.0F, 2);
  cudaGraphExec_t exec = nullptr;
  cudaGraphInstantiate(&exec, first, 0);
  cudaGraphExecUpdateResultInfo info;
  EXPECT_EQ(cudaGraphExecUpdate(exec, second, &info), cudaSuccess);
  EXPECT_EQ(cudaGraphExecUpdate(exec, longer, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  launch_and_wait(exec);
  EXPECT_EQ(x.get()[0], 2.0F);
  for (cudaGraph_t graph : {first, second, longer}) cudaGraphDestroy(graph);
  cudaGraphExecDestroy(exec);
}

TEST_F(Graphs, WhatMayNotBeCapturedSpoilsTheCapture) {
  const DeviceArray<float> x(1);
  void* p = nullptr;
  const Event event;
  cudaEventRecord(event.get(), stream_.get());
  const std::vector<std::function<cudaError_t()>> illegal{
      [&] { return cudaStreamSynchronize(stream_.get()); },
      [&] { return cudaStreamQuery(stream_.get()); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventSynchronize(event.get()); },
      [&] { return cudaMalloc(&p, 16); },
      [&] { return cudaFree(x.data()); },
      [&] {
        float host = 0;
        return cudaMemcpy(x.data(), &host, 4, cudaMemcpyHostToDevice);
      }};
  for (const auto& call : illegal) {
    cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(launch_on(stream_.get(), &set, {1, 1}, x.data(), 1.0F),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  }
  // Waiting for work that is not captured.
  cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(event.get(), side_.get());
  EXPECT_EQ(cudaStreamWaitEvent(stream_.get(), event.get(), 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  // Work of another stream that is not joined.
  cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(fork_.get(), stream_.get());
  cudaStreamWaitEvent(side_.get(), fork_.get(), 0);
  launch_on(side_.get(), &set, {1, 1}, x.data(), 1.0F);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  // Neither stream captures any more.
  EXPECT_EQ(launch_on(side_.get(), &set, {1, 1}, x.data(), 4.0F), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(side_.get()), cudaSuccess);
  EXPECT_EQ(x.get()[0], 4.0F);
}

}  // namespace
}  // namespace testbed::cuda
