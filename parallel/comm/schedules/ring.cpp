// Ring reduce-scatter and all-gather (Patarasuk, Yuan 2009), over the ranks in placement order.
#include "parallel/comm/schedules/steps.hpp"

namespace testbed {
namespace {

// In step s the rank at position p passes on the part of position p - s - first.
Steps ring_steps(int64_t n_elements, const GroupPlacement& placement, int first) {
  const int n = placement.size();
  const std::vector<std::vector<int>> orders = ring_orders(placement);
  const int channels = static_cast<int>(orders.size());
  Steps steps(static_cast<size_t>(n - 1));
  for (int s = 0; s < n - 1; ++s) {
    std::vector<Transfer>& step = steps[static_cast<size_t>(s)];
    step.reserve(static_cast<size_t>(n) * orders.size());
    for (int channel = 0; channel < channels; ++channel) {
      const std::vector<int>& order = orders[static_cast<size_t>(channel)];
      for (int p = 0; p < n; ++p) {
        const int owner = order[static_cast<size_t>((p - s - first + 2 * n) % n)];
        const IndexRange part = part_of({0, n_elements}, n, owner);
        step.push_back({.source = order[static_cast<size_t>(p)],
                        .target = order[static_cast<size_t>((p + 1) % n)],
                        .elements = part_of(part, channels, channel)});
      }
    }
  }
  return steps;
}

}  // namespace

std::vector<std::vector<int>> ring_orders(const GroupPlacement& placement) {
  const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
  std::vector<std::vector<int>> orders(static_cast<size_t>(n_channels(by_node)));
  for (size_t channel = 0; channel < orders.size(); ++channel) {
    orders[channel].reserve(static_cast<size_t>(placement.size()));
    for (const std::vector<int>& ranks : by_node) {
      const std::vector<int> of_node = in_channel(ranks, static_cast<int>(channel));
      orders[channel].insert(orders[channel].end(), of_node.begin(), of_node.end());
    }
  }
  return orders;
}

Steps ring_reduce_scatter(int64_t n_elements, const GroupPlacement& placement) {
  return ring_steps(n_elements, placement, 1);
}

Steps ring_all_gather(int64_t n_elements, const GroupPlacement& placement) {
  return ring_steps(n_elements, placement, 0);
}

Steps ring_all_reduce(int64_t n_elements, const GroupPlacement& placement) {
  Steps steps = ring_reduce_scatter(n_elements, placement);
  const Steps gather = ring_all_gather(n_elements, placement);
  steps.insert(steps.end(), gather.begin(), gather.end());
  return steps;
}

}  // namespace testbed
