// What the tests of all-reduces over peer memory share: the ranks' GPUs, copies, and sums to
// expect. For the one file of a test program.
#pragma once

#include <memory>
#include <string>

#include "parallel/comm/peer_all_reduce.hpp"
#include "tests/mpi/comm_checks.hpp"

namespace testbed {

// More than all blocks take at once.
constexpr int64_t capacity_bytes = int64_t{1280} << 10;

struct Ranks {
  explicit Ranks(MpiWorld& world) : host(world.make_group(everyone(world), Axis::tp)) {
    for (const int r : everyone(world)) {
      options.hosts.push_back(world.hosts()[static_cast<size_t>(r)]);
    }
    options.capacity_bytes = capacity_bytes;
  }
  std::unique_ptr<PeerAllReduce> make() {
    PeerAllReduce::Made made = PeerAllReduce::make(queue, *host, options);
    require_equal<std::string>(made.why_not, "", "why not");
    return std::move(made.peers);
  }

  std::unique_ptr<Communicator> host;
  cuda::Queue queue;
  PeerAllReduce::Options options;
};

inline void copy(cuda::Queue& queue, TensorView from, TensorView to) {
  cuda::check(cudaMemcpyAsync(to.data(),
                              from.data(),
                              static_cast<size_t>(from.n_bytes()),
                              cudaMemcpyDefault,
                              queue.stream()),
              "cudaMemcpyAsync");
  queue.synchronize();
}

inline Tensor on_device(cuda::Queue& queue, TensorView host) {
  Tensor device = cuda::device_tensor(host.dtype(), host.shape());
  copy(queue, host, device);
  return device;
}

inline Tensor on_host(cuda::Queue& queue, TensorView device) {
  Tensor host(device.dtype(), device.shape());
  copy(queue, device, host);
  return host;
}

// Of rank r in round `round`: other values every time.
inline Value value_of_round(int round) {
  constexpr Value values[] = {
      [](int r, int64_t i) { return random_value(r, i); },
      [](int r, int64_t i) { return random_value(r + 100, i); },
      [](int r, int64_t i) { return random_value(r + 200, i); },
      [](int r, int64_t i) { return random_value(r + 300, i); },
      [](int r, int64_t i) { return random_value(r + 400, i); },
  };
  return values[round % 5];
}

inline void require_sum(TensorView host, int n_ranks, Value value, const std::string& what) {
  for (int64_t i = 0; i < host.n_elements(); ++i) {
    if (bits_at(host, i) != expected_bits(host.dtype(), n_ranks, i, value)) {
      throw std::runtime_error(what + ": element " + std::to_string(i) +
                               " differs from the sum in rank order");
    }
  }
}

inline void require_same_bits(TensorView a, TensorView b, const std::string& what) {
  for (int64_t i = 0; i < a.n_elements(); ++i) {
    if (bits_at(a, i) != bits_at(b, i)) {
      throw std::runtime_error(what + ": element " + std::to_string(i) + " differs");
    }
  }
}

}  // namespace testbed
