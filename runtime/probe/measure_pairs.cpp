#include "runtime/probe/measure_pairs.hpp"

#include "runtime/probe/collective_timing.hpp"

namespace testbed {
namespace {

constexpr int64_t payloads[] = {int64_t{64} << 10, int64_t{4} << 20, int64_t{256} << 20};

// This rank's part in a pair's messages; none for the other ranks.
std::function<void()> there_and_back(Communicator& group, int first, int second, TensorView x) {
  if (group.rank() == first) {
    return [&group, second, x] {
      group.send(x, second).wait();
      group.recv(x, second).wait();
    };
  }
  if (group.rank() == second) {
    return [&group, first, x] {
      group.recv(x, first).wait();
      group.send(x, first).wait();
    };
  }
  return {};
}

std::function<void()> both_at_once(
    Communicator& group, int first, int second, TensorView sent, TensorView received) {
  if (group.rank() != first && group.rank() != second) return {};
  const int peer = group.rank() == first ? second : first;
  return [&group, peer, sent, received] {
    Pending coming = group.recv(received, peer);
    Pending going = group.send(sent, peer);
    coming.wait();
    going.wait();
  };
}

}  // namespace

std::vector<PairPoint> measure_pairs(const ProbeGroup& group,
                                     ControlChannel& control,
                                     Device& device,
                                     int64_t most_bytes) {
  std::vector<PairPoint> points;
  if (group.size <= 2) return points;
  CHECK(group.as_chosen != nullptr && group.as_chosen->size() == control.size());
  const DType dtype = device.compute_dtype();
  const CollectiveTimer timer(device, control);
  for (const int64_t n_bytes : payloads) {
    if (n_bytes > most_bytes) break;
    const Tensor sent = device.allocate(dtype, {n_bytes / dtype_bytes(dtype, 1)});
    const Tensor received = device.allocate(dtype, sent.shape());
    device.fill_synthetic(sent);
    device.fill_synthetic(received);
    for (int first = 0; first < group.size; ++first) {
      for (int second = first + 1; second < group.size; ++second) {
        Communicator& all = *group.as_chosen;
        const double round_us = timer.median_us(there_and_back(all, first, second, sent));
        const double both_us = timer.median_us(both_at_once(all, first, second, sent, received));
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
