#include "parallel/comm/group_placement.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace testbed {

std::vector<int> by_first_appearance(const std::vector<int>& names) {
  std::map<int, int> numbers;
  std::vector<int> numbered(names.size());
  std::transform(names.begin(), names.end(), numbered.begin(), [&](int name) {
    return numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second;
  });
  return numbered;
}

GroupPlacement one_node(int size) {
  GroupPlacement placement;
  placement.node_of.assign(static_cast<size_t>(size), 0);
  placement.device_of.resize(static_cast<size_t>(size));
  std::iota(placement.device_of.begin(), placement.device_of.end(), 0);
  return placement;
}

GroupPlacement placement_of(const std::vector<int>& world_ranks, int devices_per_node) {
  GroupPlacement placement;
  placement.node_of.reserve(world_ranks.size());
  placement.device_of.reserve(world_ranks.size());
  for (const int rank : world_ranks) {
    placement.node_of.push_back(rank / devices_per_node);
    placement.device_of.push_back(rank % devices_per_node);
  }
  return placement;
}

std::vector<std::vector<int>> ranks_by_node(const GroupPlacement& placement) {
  std::map<int, std::vector<int>> ranks;  // by node
  for (int rank = 0; rank < placement.size(); ++rank) {
    ranks[placement.node_of[static_cast<size_t>(rank)]].push_back(rank);
  }
  std::vector<std::vector<int>> by_node;
  by_node.reserve(ranks.size());
  for (auto& [node, of_node] : ranks) {
    std::stable_sort(of_node.begin(), of_node.end(), [&](int a, int b) {
      return placement.device_of[static_cast<size_t>(a)] <
             placement.device_of[static_cast<size_t>(b)];
    });
    by_node.push_back(std::move(of_node));
  }
  return by_node;
}

int n_channels(const std::vector<std::vector<int>>& by_node) {
  const size_t per_node = by_node.front().size();
  const bool even = std::all_of(by_node.begin(), by_node.end(), [&](const std::vector<int>& ranks) {
    return ranks.size() == per_node;
  });
  return by_node.size() > 1 && even ? static_cast<int>(per_node) : 1;
}

std::vector<int> in_channel(const std::vector<int>& ranks_of_node, int channel) {
  std::vector<int> order = ranks_of_node;
  std::rotate(order.begin(), order.begin() + channel, order.end());
  return order;
}

}  // namespace testbed
