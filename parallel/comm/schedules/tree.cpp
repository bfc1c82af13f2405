#include <algorithm>
#include <utility>

#include "parallel/comm/schedules/steps.hpp"

namespace testbed {
namespace {

// Edges of one level, child first; levels from the leaves to the root.
using Level = std::vector<std::pair<int, int>>;

// Member i > 0 hangs on the neighbour whose lowest set bit is the next higher one, so that in order
// the leaves are the odd members; member 0 is the root.
int in_order_parent(int i, int n) {
  if (i == 0) return -1;
  const int bit = i & -i;
  const int above = (i ^ bit) | (bit << 1);
  return above < n ? above : i ^ bit;
}

// Tree 0 is in order. Tree 1 is the same, seen from the other end (n even) or from one member on (n
// odd): either makes inner members of the odd ones.
int in_tree(int member, int n, int tree) {
  if (tree == 0) return member;
  return n % 2 == 0 ? n - 1 - member : (member + n - 1) % n;
}
int from_tree(int i, int n, int tree) {
  if (tree == 0) return i;
  return n % 2 == 0 ? n - 1 - i : (i + 1) % n;
}

std::vector<Level> tree_levels(int n, int tree) {
  std::vector<Level> levels;
  for (int bit = 1; bit < n; bit <<= 1) {
    Level& level = levels.emplace_back();
    for (int i = bit; i < n; i += 2 * bit) {
      level.emplace_back(from_tree(i, n, tree), from_tree(in_order_parent(i, n), n, tree));
    }
  }
  return levels;
}

// Up the edges of a level, or down them.
void send_level(const Level& level, bool up, IndexRange elements, std::vector<Transfer>* step) {
  for (const auto& [child, parent] : level) {
    step->push_back(
        {.source = up ? child : parent, .target = up ? parent : child, .elements = elements});
  }
}

// What one channel moves up, level by level.
struct Climb {
  std::vector<Level> levels;
  IndexRange elements;
};

// The chains of all nodes, last edge first, as levels of one edge per node.
Climb chains(const std::vector<std::vector<int>>& orders, IndexRange elements) {
  Climb climb{.levels = {}, .elements = elements};
  size_t longest = 0;
  for (const std::vector<int>& order : orders) longest = std::max(longest, order.size());
  for (size_t position = longest - 1; position > 0; --position) {
    Level& level = climb.levels.emplace_back();
    for (const std::vector<int>& order : orders) {
      if (position < order.size()) level.emplace_back(order[position], order[position - 1]);
    }
  }
  return climb;
}

Climb heads_tree(const std::vector<std::vector<int>>& orders, IndexRange elements, int tree) {
  Climb climb{.levels = tree_levels(static_cast<int>(orders.size()), tree),
              .elements = part_of(elements, 2, tree)};
  for (Level& level : climb.levels) {
    for (auto& [child, parent] : level) {
      child = orders[static_cast<size_t>(child)].front();
      parent = orders[static_cast<size_t>(parent)].front();
    }
  }
  return climb;
}

// Adds a climb and its way back to steps: up from step `first`, down to the mirrored step.
void add(const Climb& climb, size_t first, Steps* steps) {
  for (size_t i = 0; i < climb.levels.size(); ++i) {
    const size_t up = first + i;
    send_level(climb.levels[i], true, climb.elements, &(*steps)[up]);
    send_level(climb.levels[i], false, climb.elements, &(*steps)[steps->size() - 1 - up]);
  }
}

}  // namespace

std::vector<int> tree_parents(int n, int tree) {
  std::vector<int> parents(static_cast<size_t>(n), -1);
  for (int member = 0; member < n; ++member) {
    const int parent = in_order_parent(in_tree(member, n, tree), n);
    if (parent >= 0) parents[static_cast<size_t>(member)] = from_tree(parent, n, tree);
  }
  return parents;
}

Steps tree_all_reduce(int64_t n_elements, const GroupPlacement& placement) {
  const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
  const int channels = n_channels(by_node);
  Steps steps;
  for (int channel = 0; channel < channels; ++channel) {
    std::vector<std::vector<int>> orders(by_node.size());
    std::transform(by_node.begin(), by_node.end(), orders.begin(), [&](const auto& ranks) {
      return in_channel(ranks, channel);
    });
    const IndexRange share = part_of({0, n_elements}, channels, channel);
    const Climb chain = chains(orders, share);
    const Climb trees[] = {heads_tree(orders, share, 0), heads_tree(orders, share, 1)};
    steps.resize(2 * (chain.levels.size() + trees[0].levels.size()));
    add(chain, 0, &steps);
    for (const Climb& tree : trees) add(tree, chain.levels.size(), &steps);
  }
  return steps;
}

}  // namespace testbed
