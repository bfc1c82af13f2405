#include "parallel/comm/row_exchange.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "kernels/base/check.hpp"
#include "parallel/comm/schedules/pace.hpp"

namespace testbed {
namespace {

using Kind = RowExchange::Kind;

std::string timing_key(Kind kind, CommAlgorithm algorithm) {
  if (algorithm == CommAlgorithm::direct) return timing_key(CommOp::all_to_all, algorithm);
  const std::string name = kind == Kind::combine ? "combine/" : "dispatch/";
  return name + std::string(algorithm_name(algorithm));
}

// Where each rank sits: node by first appearance, place among the node's ranks.
struct Seats {
  std::vector<int> node_of;               // [size]
  std::vector<int> place_of;              // [size]
  std::vector<std::vector<int>> by_node;  // [n_nodes][places]
  explicit Seats(const GroupPlacement& placement)
      : node_of(by_first_appearance(placement.node_of)), place_of(node_of.size(), 0) {
    for (const std::vector<int>& ranks : ranks_by_node(placement)) {
      const auto node = static_cast<size_t>(node_of[static_cast<size_t>(ranks.front())]);
      if (by_node.size() <= node) by_node.resize(node + 1);
      by_node[node] = ranks;
      for (size_t place = 0; place < ranks.size(); ++place) {
        place_of[static_cast<size_t>(ranks[place])] = static_cast<int>(place);
      }
    }
  }
  int n_nodes() const { return static_cast<int>(by_node.size()); }
  int n_local() const {  // of the node that holds most
    size_t most = 0;
    for (const std::vector<int>& ranks : by_node) most = std::max(most, ranks.size());
    return static_cast<int>(most);
  }
  int node(int rank) const { return node_of[static_cast<size_t>(rank)]; }
  bool even() const {
    return std::all_of(by_node.begin(), by_node.end(), [&](const std::vector<int>& ranks) {
      return ranks.size() == by_node.front().size();
    });
  }
  // The rank that has this rank's place on a node.
  int partner(int rank, int node) const {
    return by_node[static_cast<size_t>(node)]
                  [static_cast<size_t>(place_of[static_cast<size_t>(rank)])];
  }
};

// Bytes that really move between each pair, [source][target].
class Traffic {
 public:
  explicit Traffic(int size) : size_(static_cast<size_t>(size)), bytes_(size_ * size_, 0) {}
  void add(int source, int target, int64_t n_bytes) {
    if (source != target)
      bytes_[static_cast<size_t>(source) * size_ + static_cast<size_t>(target)] += n_bytes;
  }
  int64_t between(int source, int target) const {
    return bytes_[static_cast<size_t>(source) * size_ + static_cast<size_t>(target)];
  }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::vector<int64_t> bytes_;
};

Traffic of_pairs(const RowMatrix& rows) {
  Traffic traffic(rows.size);
  for (int source = 0; source < rows.size; ++source) {
    for (int target = 0; target < rows.size; ++target) {
      traffic.add(source, target, rows.between(source, target));
    }
  }
  return traffic;
}

Traffic once_per_node(const RowMatrix& rows, const Seats& seats) {
  const bool combine = rows.kind == Kind::combine;
  Traffic traffic(rows.size);
  // A combine is a dispatch seen backwards: its tokens are the targets'.
  const auto add = [&](int from, int to, int64_t n_bytes) {
    combine ? traffic.add(to, from, n_bytes) : traffic.add(from, to, n_bytes);
  };
  for (int holder = 0; holder < rows.size; ++holder) {  // of the tokens
    for (int node = 0; node < seats.n_nodes(); ++node) {
      const int partner = seats.partner(holder, node);
      if (node != seats.node(holder)) add(holder, partner, rows.with_node(holder, node));
      for (const int expert : seats.by_node[static_cast<size_t>(node)]) {
        add(partner, expert, combine ? rows.between(expert, holder) : rows.between(holder, expert));
      }
    }
  }
  return traffic;
}

// What the busiest rank sends within its node and across nodes.
struct Busiest {
  double within_bytes = 0.0;
  double across_bytes = 0.0;
};
Busiest busiest(const Traffic& traffic, const Seats& seats) {
  Busiest most;
  const int n = static_cast<int>(traffic.size());
  for (int a = 0; a < n; ++a) {
    std::array<int64_t, 2> sent{};  // within, across
    std::array<int64_t, 2> received{};
    for (int b = 0; b < n; ++b) {
      const auto across = static_cast<size_t>(seats.node(a) != seats.node(b));
      sent[across] += traffic.between(a, b);
      received[across] += traffic.between(b, a);
    }
    most.within_bytes =
        std::max(most.within_bytes, static_cast<double>(std::max(sent[0], received[0])));
    most.across_bytes =
        std::max(most.across_bytes, static_cast<double>(std::max(sent[1], received[1])));
  }
  return most;
}

// The last protocol's limits are what the kernel was measured with.
bool measured(const LinkTiming& timing, const std::string& key, int64_t bytes_per_rank) {
  const auto entry = timing.of.find(key);
  if (entry == timing.of.end()) return false;
  const int64_t most = entry->second.back().max_bytes;
  return most == 0 || bytes_per_rank <= most;
}

bool runs(CommAlgorithm algorithm,
          const RowMatrix& rows,
          const Seats& seats,
          const ClusterSpec& cluster) {
  const bool across = seats.n_nodes() > 1;
  const bool within = static_cast<size_t>(rows.size) > seats.by_node.size();
  if (algorithm == CommAlgorithm::hierarchical && across &&
      (!seats.even() || rows.node_bytes.empty())) {
    return false;
  }
  const std::string key = timing_key(rows.kind, algorithm);
  const int64_t n_bytes = rows.busiest_bytes();
  return (!within || measured(cluster.node.link.timing, key, n_bytes)) &&
         (!across || measured(cluster.fabric->nic.timing, key, n_bytes));
}

double log2_steps(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

struct Paces {
  Pace within;
  Pace across;
  double latency_s = 0.0;
};
Paces paces_of(CommAlgorithm algorithm,
               const RowMatrix& rows,
               const Busiest& most,
               const Seats& seats,
               const ClusterSpec& cluster) {
  const bool direct = algorithm == CommAlgorithm::direct;
  const std::string key = timing_key(rows.kind, algorithm);
  const int64_t payload = rows.busiest_bytes() * rows.size;
  const int n_nodes = seats.n_nodes();
  const int n_local = seats.n_local();
  Paces paces;
  const auto latency_s = [](const Pace& pace, double steps) {
    return pace.start_s + pace.fill_s + pace.step_s * steps;
  };
  if (n_local > 1) {
    const Sharers sharers{rows.size, n_local, n_nodes};
    paces.within = pace_on(cluster.node.link, key, payload, sharers, most.within_bytes);
    paces.latency_s = latency_s(paces.within, log2_steps(n_local));
  }
  if (n_nodes > 1) {
    // Without a kernel of its own what crosses goes as messages, beside those within the node.
    const std::string over_nic = direct ? timing_key(CommOp::send, algorithm) : key;
    const Sharers sharers{rows.size, 2, n_nodes};
    paces.across = pace_on(cluster.fabric->nic, over_nic, payload, sharers, most.across_bytes);
    const double across_s = latency_s(paces.across, direct ? 1.0 : log2_steps(n_nodes));
    paces.latency_s = direct ? std::max(paces.latency_s, across_s) : across_s;
  }
  return paces;
}

bool ideal(const Seats& seats, const ClusterSpec& cluster) {
  return cluster.node.link.timing.of.empty() &&
         (seats.n_nodes() == 1 || cluster.fabric->nic.timing.of.empty());
}

}  // namespace

int64_t RowMatrix::busiest_bytes() const {
  int64_t most = 0;
  for (int a = 0; a < size; ++a) {
    int64_t sent = 0;
    int64_t received = 0;
    for (int b = 0; b < size; ++b) {
      sent += between(a, b);
      received += between(b, a);
    }
    most = std::max({most, sent, received});
  }
  return most;
}

std::vector<CommAlgorithm> exchange_algorithms(const RowMatrix& rows,
                                               const GroupPlacement& placement,
                                               const ClusterSpec& cluster) {
  if (rows.size == 1) return {};
  const Seats seats(placement);
  std::vector<CommAlgorithm> algorithms;
  if (rows.kind != Kind::rows) {
    for (const CommAlgorithm kernel : {CommAlgorithm::low_latency, CommAlgorithm::hierarchical}) {
      if (runs(kernel, rows, seats, cluster)) algorithms.push_back(kernel);
    }
  }
  if (!algorithms.empty()) return algorithms;
  algorithms = {CommAlgorithm::direct};
  if (ideal(seats, cluster) && rows.kind != Kind::rows && seats.n_nodes() > 1 && seats.even() &&
      !rows.node_bytes.empty()) {
    algorithms.push_back(CommAlgorithm::hierarchical);
  }
  return algorithms;
}

CollectiveSchedule exchange_schedule(CommAlgorithm algorithm,
                                     const RowMatrix& rows,
                                     const GroupPlacement& placement,
                                     const ClusterSpec& cluster) {
  CollectiveSchedule schedule{.op = CommOp::all_to_all, .algorithm = algorithm, .rounds = {}};
  if (rows.size == 1) return schedule;
  const Seats seats(placement);
  const bool by_node = algorithm == CommAlgorithm::hierarchical && seats.n_nodes() > 1;
  const Traffic traffic = by_node ? once_per_node(rows, seats) : of_pairs(rows);
  const Paces paces = paces_of(algorithm, rows, busiest(traffic, seats), seats, cluster);
  Round& round = schedule.rounds.emplace_back();
  round.latency_s = paces.latency_s;
  round.flows.reserve(traffic.size() * traffic.size());
  for (int a = 0; a < rows.size; ++a) {
    for (int b = 0; b < rows.size; ++b) {
      if (traffic.between(a, b) == 0) continue;
      const bool crosses = seats.node(a) != seats.node(b);
      round.flows.push_back({.source = a,
                             .target = b,
                             .n_bytes = traffic.between(a, b),
                             .bytes_per_s = (crosses ? paces.across : paces.within).bytes_per_s});
    }
  }
  return schedule;
}

CollectiveSchedule condensed(const CollectiveSchedule& schedule, const GroupPlacement& placement) {
  const Seats seats(placement);
  if (!seats.even()) return schedule;
  CollectiveSchedule ring{.op = schedule.op, .algorithm = schedule.algorithm, .rounds = {}};
  for (const Round& round : schedule.rounds) {
    Traffic traffic(placement.size());
    std::array<double, 2> bytes_per_s{};  // within, across
    for (const Flow& flow : round.flows) {
      traffic.add(flow.source, flow.target, flow.n_bytes);
      bytes_per_s[seats.node(flow.source) != seats.node(flow.target) ? 1 : 0] = flow.bytes_per_s;
    }
    const Busiest most = busiest(traffic, seats);
    Round& sent = ring.rounds.emplace_back();
    sent.latency_s = round.latency_s;
    const auto send = [&](int source, int target, double n_bytes, double rate) {
      if (source == target || n_bytes == 0.0) return;
      sent.flows.push_back({source, target, std::llround(n_bytes), rate});
    };
    sent.flows.reserve(2 * traffic.size());
    for (int rank = 0; rank < placement.size(); ++rank) {
      const std::vector<int>& local = seats.by_node[static_cast<size_t>(seats.node(rank))];
      const size_t next = static_cast<size_t>(seats.place_of[static_cast<size_t>(rank)]) + 1;
      send(rank, local[next % local.size()], most.within_bytes, bytes_per_s[0]);
      const int node = (seats.node(rank) + 1) % seats.n_nodes();
      send(rank, seats.partner(rank, node), most.across_bytes, bytes_per_s[1]);
    }
  }
  return ring;
}

}  // namespace testbed
