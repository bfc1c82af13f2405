// Exchanges of rows as data (Communicator::all_to_all): what each rank has for each other, and what
// an algorithm sends for it over which links.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/comm/collective_schedule.hpp"

namespace testbed {

// Of a whole group. Bytes between a pair are those of all rows, whatever an algorithm makes of it.
struct RowMatrix {
  RowExchange::Kind kind = RowExchange::Kind::rows;
  int size = 1;
  int n_nodes = 1;
  std::vector<int64_t> bytes;  // [size, size] of (source, target), a rank's own included
  // [size, n_nodes] of distinct rows from (dispatch) or to (combine) this rank, to or from a node;
  // nodes by first appearance. Empty: not known, and every row crosses.
  std::vector<int64_t> node_bytes;

  int64_t between(int source, int target) const {
    return bytes[static_cast<size_t>(source) * static_cast<size_t>(size) +
                 static_cast<size_t>(target)];
  }
  int64_t with_node(int rank, int node) const {
    return node_bytes[static_cast<size_t>(rank) * static_cast<size_t>(n_nodes) +
                      static_cast<size_t>(node)];
  }
  // What the busiest rank sends or receives, its own rows included.
  int64_t busiest_bytes() const;
};

// The algorithms for such an exchange: the kernels that the links are calibrated for up to the
// bytes they were measured with, else direct messages. Empty for a group of one.
std::vector<CommAlgorithm> exchange_algorithms(const RowMatrix& rows,
                                               const GroupPlacement& placement,
                                               const ClusterSpec& cluster);

// One round: what is handed on within a node moves while more comes in.
// direct, low_latency: every pair exchanges its rows. hierarchical: the rows of a rank that are
// distinct go once to the rank of each node that has its place there, which hands them on
// (dispatch) or sums what the node's ranks have for it before it sends (combine).
CollectiveSchedule exchange_schedule(CommAlgorithm algorithm,
                                     const RowMatrix& rows,
                                     const GroupPlacement& placement,
                                     const ClusterSpec& cluster);

// The same round with a flow or two from each rank, to its neighbour and to its partner on the next
// node, of what the busiest rank has for its node and for others: as long on idle links and as much
// in the way of others, and cheap to play. Unchanged if nodes hold unequal numbers of ranks.
CollectiveSchedule condensed(const CollectiveSchedule& schedule, const GroupPlacement& placement);

}  // namespace testbed
