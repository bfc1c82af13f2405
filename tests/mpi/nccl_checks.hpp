// What the tests of NCCL's communicators on the emulated device share. For the one file of a test
// program.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/clock.hpp"
#include "kernels/cuda/stream_clock.hpp"
#include "parallel/comm/nccl_world.hpp"
#include "tests/cuda_emulation/emulation.hpp"
#include "tests/cuda_emulation/nccl.hpp"
#include "tests/mpi/comm_checks.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {

// A rank's device with NCCL, and a group of all ranks.
struct Fixture {
  MpiWorld& world;
  std::unique_ptr<ControlChannel> control;
  std::unique_ptr<Communicator> host;
  cuda::Queue queue;
  cuda::StreamClock clock{queue};
  NcclWorld nccl;
  std::unique_ptr<NcclCommunicator> group;

  explicit Fixture(MpiWorld& w, double deadline_s = 60.0, bool messages = true)
      : world(w),
        control(w.make_control()),
        host(w.make_host_group(everyone(w), Axis::cp)),
        nccl(w, *control, queue, clock, deadline_s),
        group(nccl.make_group(*host, messages)) {}
};

inline void upload(cuda::Queue& queue, TensorView host, TensorView device) {
  if (host.n_bytes() == 0) return;
  cuda::check(cudaMemcpyAsync(device.data(),
                              host.data(),
                              static_cast<size_t>(host.n_bytes()),
                              cudaMemcpyHostToDevice,
                              queue.stream()),
              "cudaMemcpyAsync");
  queue.synchronize();
}

inline Tensor download(cuda::Queue& queue, TensorView device) {
  Tensor host(device.dtype(), device.shape());
  queue.synchronize();
  if (host.n_bytes() == 0) return host;
  cuda::check(
      cudaMemcpy(
          host.data(), device.data(), static_cast<size_t>(host.n_bytes()), cudaMemcpyDeviceToHost),
      "cudaMemcpy");
  return host;
}

inline Tensor filled(
    cuda::Queue& queue, DType dtype, Shape shape, int rank, Value value = random_value) {
  const Tensor host(dtype, shape);
  fill(host, rank, value);
  Tensor device = cuda::device_tensor(dtype, shape);
  upload(queue, host, device);
  return device;
}

inline void require_equal_data(TensorView actual, TensorView expected, const std::string& what) {
  require(actual.n_bytes() == expected.n_bytes(), what + ": bytes");
  for (int64_t i = 0; i < actual.n_elements(); ++i) {
    require(bits_at(actual, i) == bits_at(expected, i), what + ": element " + std::to_string(i));
  }
}

// The main() of such a program.
inline int run_on_mpi(void (*work)(MpiWorld&, const std::string&), int argc, char** argv) {
  MpiWorld world;
  return on_every_rank(world, [&] {
    work(world, argc > 1 ? argv[1] : "");
    return 0;
  });
}

// Runs the checks, then looks for what they left.
inline void run_and_count_leaks(MpiWorld& world, void (*checks)(Fixture&)) {
  const emulation::Live before = emulation::live();
  {
    Fixture f(world);
    checks(f);
  }
  require_equal(emulation::live_nccl_communicators(), 0, "NCCL communicators left");
  require(emulation::live() == before, "nothing of the device's is left");
  world.make_control()->barrier();
}

}  // namespace testbed
