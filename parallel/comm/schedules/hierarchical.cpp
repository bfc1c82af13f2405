#include <algorithm>

#include "kernels/base/check.hpp"
#include "parallel/comm/schedules/steps.hpp"

namespace testbed {
namespace {

// Adds the steps of one subgroup, whose ranks are ranks[0..], of the elements from offset on, to
// the steps of the whole group.
void embed(const Steps& steps, const std::vector<int>& ranks, int64_t offset, Steps* all) {
  all->resize(std::max(all->size(), steps.size()));
  for (size_t s = 0; s < steps.size(); ++s) {
    for (const Transfer& transfer : steps[s]) {
      (*all)[s].push_back(
          {.source = ranks[static_cast<size_t>(transfer.source)],
           .target = ranks[static_cast<size_t>(transfer.target)],
           .elements = {transfer.elements.begin + offset, transfer.elements.end + offset}});
    }
  }
}

// One rank on each of n nodes.
GroupPlacement one_per_node(int n) {
  GroupPlacement placement = one_node(n);
  std::swap(placement.node_of, placement.device_of);
  return placement;
}

}  // namespace

HierarchicalSteps hierarchical_all_reduce(int64_t n_elements, const GroupPlacement& placement) {
  const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
  const int n_nodes = static_cast<int>(by_node.size());
  const int n_local = static_cast<int>(by_node.front().size());
  CHECK(n_channels(by_node) == n_local);  // every node holds as many
  HierarchicalSteps steps;
  for (const std::vector<int>& ranks : by_node) {
    embed(ring_reduce_scatter(n_elements, one_node(n_local)), ranks, 0, &steps.reduce_scatter);
    embed(ring_all_gather(n_elements, one_node(n_local)), ranks, 0, &steps.all_gather);
  }
  for (int local = 0; local < n_local; ++local) {
    std::vector<int> peers(by_node.size());  // the ranks that hold this part
    std::transform(by_node.begin(), by_node.end(), peers.begin(), [&](const auto& ranks) {
      return ranks[static_cast<size_t>(local)];
    });
    const IndexRange part = part_of({0, n_elements}, n_local, local);
    const GroupPlacement across = one_per_node(n_nodes);
    embed(n_nodes <= max_ring_nodes ? ring_all_reduce(part.size(), across)
                                    : tree_all_reduce(part.size(), across),
          peers,
          part.begin,
          &steps.across);
  }
  return steps;
}

}  // namespace testbed
