#include "runtime/probe/measure_pairs.hpp"

#include "runtime/probe/collective_timing.hpp"

namespace testbed {
namespace {

constexpr int64_t payloads[] = {int64_t{64} << 10, int64_t{4} << 20, int64_t{256} << 20};

// This rank's part in the messages of first < second; none for the other ranks.
std::function<void()> there_and_back(const MessageWays& ways, int first, int second, TensorView x) {
  const int rank = ways.upwards.rank();
  if (rank == first) {
    return [ways, second, x] {
      ways.upwards.send(x, second).wait();
      ways.downwards.recv(x, second).wait();
    };
  }
  if (rank == second) {
    return [ways, first, x] {
      ways.upwards.recv(x, first).wait();
      ways.downwards.send(x, first).wait();
    };
  }
  return {};
}

std::function<void()> both_at_once(
    const MessageWays& ways, int first, int second, TensorView sent, TensorView received) {
  const int rank = ways.upwards.rank();
  if (rank != first && rank != second) return {};
  const int peer = rank == first ? second : first;
  Communicator& way_there = rank == first ? ways.upwards : ways.downwards;
  Communicator& way_here = rank == first ? ways.downwards : ways.upwards;
  return [&way_there, &way_here, peer, sent, received] {
    Pending coming = way_here.recv(received, peer);
    Pending going = way_there.send(sent, peer);
    coming.wait();
    going.wait();
  };
}

}  // namespace

std::vector<PairPoint> measure_pairs(const MessageWays& ways,
                                     ControlChannel& control,
                                     Device& device,
                                     int64_t most_bytes) {
  std::vector<PairPoint> points;
  const int size = control.size();
  CHECK(ways.upwards.size() == size && ways.downwards.size() == size);
  if (size <= 2) return points;
  const DType dtype = device.compute_dtype();
  const CollectiveTimer timer(device, control);
  for (const int64_t n_bytes : payloads) {
    if (n_bytes > most_bytes) break;
    const Tensor sent = device.allocate(dtype, {n_bytes / dtype_bytes(dtype, 1)});
    const Tensor received = device.allocate(dtype, sent.shape());
    device.fill_synthetic(sent);
    device.fill_synthetic(received);
    for (int first = 0; first < size; ++first) {
      for (int second = first + 1; second < size; ++second) {
        const double round_us = timer.median_us(there_and_back(ways, first, second, sent));
        const double both_us = timer.median_us(both_at_once(ways, first, second, sent, received));
        points.push_back({.first = first,
                          .second = second,
                          .bytes = n_bytes,
                          .one_way_us = round_us / 2.0,
                          .both_ways_us = both_us});
      }
    }
  }
  return points;
}

}  // namespace testbed
