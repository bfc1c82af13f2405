#include "parallel/comm/wire_bytes.hpp"

#include <algorithm>

#include "kernels/base/check.hpp"
#include "parallel/comm/schedules/steps.hpp"
#include "parallel/shard.hpp"

namespace testbed {
namespace {

// Elements that the ring's all-gather does not send: its successors' parts.
int64_t not_gathered(int64_t n_elements, int rank, const GroupPlacement& placement) {
  const std::vector<std::vector<int>> orders = ring_orders(placement);
  const int channels = static_cast<int>(orders.size());
  int64_t elements = 0;
  for (int channel = 0; channel < channels; ++channel) {
    const std::vector<int>& order = orders[static_cast<size_t>(channel)];
    const auto at = std::find(order.begin(), order.end(), rank);
    const int successor = at + 1 == order.end() ? order.front() : *(at + 1);
    const IndexRange part = part_of({0, n_elements}, placement.size(), successor);
    elements += part_of(part, channels, channel).size();
  }
  return elements;
}

int64_t ring(CommOp op, int64_t n_elements, int rank, const GroupPlacement& placement) {
  const int64_t scattered = n_elements - split_range(n_elements, placement.size(), rank).size();
  if (op == CommOp::reduce_scatter) return scattered;
  const int64_t gathered = n_elements - not_gathered(n_elements, rank, placement);
  return op == CommOp::all_gather ? gathered : scattered + gathered;
}

// Messages of a member of the two trees across nodes, of half of n_elements each: one to its
// parent, one to each child.
int64_t trees(int64_t n_elements, int n, int member) {
  int64_t elements = 0;
  for (int tree = 0; tree < 2; ++tree) {
    const std::vector<int> parents = tree_parents(n, tree);
    const int64_t messages = (parents[static_cast<size_t>(member)] >= 0 ? 1 : 0) +
                             std::count(parents.begin(), parents.end(), member);
    elements += messages * split_range(n_elements, 2, tree).size();
  }
  return elements;
}

struct Seat {
  int node = 0;   // index into ranks_by_node
  int local = 0;  // index within that node's ranks
};
Seat seat_of(int rank, const std::vector<std::vector<int>>& by_node) {
  for (size_t node = 0; node < by_node.size(); ++node) {
    const auto at = std::find(by_node[node].begin(), by_node[node].end(), rank);
    if (at == by_node[node].end()) continue;
    return {.node = static_cast<int>(node), .local = static_cast<int>(at - by_node[node].begin())};
  }
  CHECK(false);
}

int64_t tree(int64_t n_elements, int rank, const GroupPlacement& placement) {
  const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
  const Seat seat = seat_of(rank, by_node);
  const int n_nodes = static_cast<int>(by_node.size());
  const int n_local = static_cast<int>(by_node[static_cast<size_t>(seat.node)].size());
  const int channels = n_channels(by_node);
  int64_t elements = 0;
  for (int channel = 0; channel < channels; ++channel) {
    const int64_t share = split_range(n_elements, channels, channel).size();
    const int position = (seat.local - channel + n_local) % n_local;  // in the node's chain
    if (position > 0) elements += share;                              // up
    if (position < n_local - 1) elements += share;                    // down
    if (position == 0) elements += trees(share, n_nodes, seat.node);
  }
  return elements;
}

int64_t hierarchical(int64_t n_elements, int rank, const GroupPlacement& placement) {
  const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
  const Seat seat = seat_of(rank, by_node);
  const int n_nodes = static_cast<int>(by_node.size());
  const int n_local = static_cast<int>(by_node.front().size());
  const int64_t part = split_range(n_elements, n_local, seat.local).size();
  const int64_t across = n_nodes <= max_ring_nodes
                             ? ring(CommOp::all_reduce, part, seat.node, one_node(n_nodes))
                             : trees(part, n_nodes, seat.node);
  return ring(CommOp::all_reduce, n_elements, seat.local, one_node(n_local)) + across;
}

// The switch reads each rank's whole payload to sum it; a rank writes its part once for all.
int64_t nvls(CommOp op, int64_t n_elements, int64_t mine) {
  if (op == CommOp::all_gather) return mine;
  return op == CommOp::reduce_scatter ? n_elements : n_elements + mine;
}

// Each rank of a node has the node's sum of its part, and takes that to the other nodes: by trees,
// or once to the network's switches (SHARP), which return the sum of all.
int64_t nvls_tree(int64_t n_elements, int rank, const GroupPlacement& placement) {
  const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
  const Seat seat = seat_of(rank, by_node);
  const auto& locals = by_node[static_cast<size_t>(seat.node)];
  const int64_t part = split_range(n_elements, static_cast<int>(locals.size()), seat.local).size();
  return nvls(CommOp::all_reduce, n_elements, part) +
         trees(part, static_cast<int>(by_node.size()), seat.node);
}

int64_t collnet(int64_t n_elements, int rank, const GroupPlacement& placement) {
  const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
  const Seat seat = seat_of(rank, by_node);
  const int n_local = static_cast<int>(by_node[static_cast<size_t>(seat.node)].size());
  const int64_t part = split_range(n_elements, n_local, seat.local).size();
  return ring(CommOp::all_reduce, n_elements, seat.local, one_node(n_local)) + part;
}

int64_t direct(CommOp op, int64_t n_elements, int rank, int size) {
  const int64_t mine = split_range(n_elements, size, rank).size();
  switch (op) {
    case CommOp::all_gather:
      return (size - 1) * mine;
    case CommOp::reduce_scatter:
    case CommOp::all_to_all:
      return n_elements - mine;
    case CommOp::broadcast:
      return rank == 0 ? (size - 1) * n_elements : 0;
    case CommOp::send:
      return rank == 0 ? n_elements : 0;
    default:
      return 0;  // recv; barrier: its messages are empty
  }
}

}  // namespace

int64_t wire_bytes(CommOp op,
                   CommAlgorithm algorithm,
                   int64_t n_bytes,
                   int64_t element_bytes,
                   int rank,
                   int size) {
  CHECK(n_bytes % element_bytes == 0);
  const int64_t n_elements = n_bytes / element_bytes;
  const int64_t mine = split_range(n_elements, size, rank).size();
  switch (algorithm) {
    case CommAlgorithm::none:
      return 0;
    case CommAlgorithm::direct:
      return direct(op, n_elements, rank, size) * element_bytes;
    case CommAlgorithm::one_shot:
    case CommAlgorithm::one_shot_norm:
      return (size - 1) * n_bytes;
    case CommAlgorithm::two_shot:  // every part but mine to its owner, then my sum to everyone
      return ((n_elements - mine) + (size - 1) * mine) * element_bytes;
    case CommAlgorithm::nvls:
      return nvls(op, n_elements, mine) * element_bytes;
    case CommAlgorithm::pat:  // as many parts as a ring's, over fewer steps
      return (n_elements - mine) * element_bytes;
    default:
      return wire_bytes(op, algorithm, n_bytes, element_bytes, rank, one_node(size));
  }
}

int64_t wire_bytes(CommOp op,
                   CommAlgorithm algorithm,
                   int64_t n_bytes,
                   int64_t element_bytes,
                   int rank,
                   const GroupPlacement& placement) {
  CHECK(n_bytes % element_bytes == 0);
  const int64_t n_elements = n_bytes / element_bytes;
  switch (algorithm) {
    case CommAlgorithm::ring:
      return ring(op, n_elements, rank, placement) * element_bytes;
    case CommAlgorithm::tree:
      return tree(n_elements, rank, placement) * element_bytes;
    case CommAlgorithm::hierarchical:
      return hierarchical(n_elements, rank, placement) * element_bytes;
    case CommAlgorithm::nvls_tree:
      return nvls_tree(n_elements, rank, placement) * element_bytes;
    case CommAlgorithm::collnet:
      return collnet(n_elements, rank, placement) * element_bytes;
    default:
      return wire_bytes(op, algorithm, n_bytes, element_bytes, rank, placement.size());
  }
}

}  // namespace testbed
