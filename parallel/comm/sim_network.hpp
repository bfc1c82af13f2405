// SimNetwork: what the ranks of one simulated run share: where they sit, their groups, and the
// messages on their way. Rank r sits on device r of the cluster: by node, then by slot.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kernels/sim/sim_device.hpp"
#include "kernels/sim/virtual_time.hpp"
#include "parallel/comm/collective_times.hpp"
#include "parallel/comm/control.hpp"
#include "parallel/comm/link_loads.hpp"
#include "parallel/comm/row_exchange.hpp"

namespace testbed {

// Thrown by a rank that needs a collective's time which CollectiveTimes does not have. The run is
// given up, the time computed, and the run begun again: within a run the links are not idle.
struct TimesMissing {};

struct SimNetworkOptions {
  bool no_waiting = false;  // what if nobody waited for a later rank
  bool memoise = true;      // false: every collective is played as flows (the memo's check)
};

// One rank's part in an exchange of rows.
struct SimRows {
  RowExchange::Kind kind = RowExchange::Kind::rows;
  int64_t row_bytes = 0;
  std::vector<int64_t> rows;       // [size], for each rank
  std::vector<int64_t> node_rows;  // [n_nodes] or empty
  Bytes data;                      // of host memory
};

// A group of ranks as all of them see it.
struct SimGroup {
  GroupInfo info;  // of its rank 0
  GroupPlacement placement;
  // It shares its links with no message, and only with groups that have a rank in common, which
  // does one collective at a time: its collectives take what they take alone.
  bool exclusive = false;
  int barrier = -1;
  // Of the collective at hand.
  int n_arrived = 0;
  double last_arrival_s = 0.0;
  double end_s = 0.0;
  double seconds = 0.0;  // if it is alone on its links
  // Host memory that is gathered (sampled ids), of even and odd collectives in turn: a rank may be
  // one ahead of the slowest.
  std::array<std::vector<Bytes>, 2> gathered;     // [parity][size]
  std::array<std::vector<SimRows>, 2> exchanged;  // [parity][size]
  CommAlgorithm exchange_algorithm = CommAlgorithm::none;
  std::vector<int64_t> exchange_sent;                                       // [size], bytes
  std::map<std::pair<CommOp, int64_t>, std::vector<TimedAlgorithm>> times;  // by (op, bytes)
};

// A message on its way. The sender may go on; the receiver takes it in order.
struct SimMessage {
  VirtualTime::FlowId flow = -1;
  double latency_s = 0.0;  // after the last byte left
  double seconds = 0.0;    // alone on the links; only known when nobody waits
  Bytes data;              // of host memory
};

class SimNetwork {
 public:
  SimNetwork(VirtualTime& time,
             const ClusterSpec& cluster,
             const CollectiveTimes& times,
             SimNetworkOptions options);
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // Groups are made once, before the run; the ranks' communicators borrow them.
  SimGroup& make_group(const std::vector<int>& world_ranks, Axis axis);
  // Messages will travel between these ranks: their links are no group's own.
  void expect_messages(int source, int target);
  // After all groups and messages are known.
  void find_exclusive_groups();

  // The algorithms for a collective of the group, fastest first. Throws TimesMissing.
  const std::vector<TimedAlgorithm>& algorithms(SimGroup& group, CommOp op, int64_t n_bytes);
  // One rank's part in a collective: returns at its end, with the clock moved there. All ranks of
  // the group call it.
  void collective(
      SimGroup& group, SimClock& clock, CommOp op, CommAlgorithm algorithm, int64_t n_bytes);

  // One rank's part in an exchange of rows, which it has put into exchanged[parity]: as collective.
  // Afterwards exchange_algorithm and exchange_sent are known.
  void exchange(SimGroup& group, SimClock& clock, size_t parity);

  std::shared_ptr<SimMessage> send(
      int source, int target, int channel, int64_t n_bytes, Bytes data, SimClock& clock);
  // Which message of the channel a receive that is posted now will get: they match in order of
  // posting, whatever the order in which they are waited for.
  int64_t post_receive(int source, int target, int channel);
  // That message, once it was sent (not: arrived).
  std::shared_ptr<SimMessage> take(int source, int target, int channel, int64_t number);
  // Its sender's buffer is free; its receiver has it.
  void wait_sent(const SimMessage& message, SimClock& clock);
  // posted_s: when the receive was posted. Returns when it had arrived, by the clock of the
  // simulation; 0 if nobody waits.
  int64_t wait_received(const SimMessage& message, double posted_s, SimClock& clock);

  // What the links of each axis' groups are called: of all groups, they may differ.
  std::map<Axis, std::string> transports() const;

  // What was missing when a rank threw TimesMissing.
  const std::set<CollectiveKey>& missing() const { return missing_; }
  std::string transport_of(const SimGroup& group) const;
  int node_of(int rank) const { return rank / cluster_.node.n_devices; }
  const ClusterSpec& cluster() const { return cluster_; }

 private:
  struct Channel {
    int semaphore = -1;
    int64_t n_sent = 0;
    int64_t n_posted = 0;                                 // receives
    std::map<int64_t, std::shared_ptr<SimMessage>> sent;  // not yet taken, by number
  };
  Channel& channel(int source, int target, int number);
  const std::vector<TimedAlgorithm>& message_times(int source, int target, int64_t n_bytes);
  // The last rank to arrive calls `seconds`, what it takes alone on its links, or plays `schedule`.
  void meet(SimGroup& group,
            SimClock& clock,
            const std::function<double()>& seconds,
            const std::function<CollectiveSchedule()>& schedule);
  double seconds_of(SimGroup& group, CommOp op, CommAlgorithm algorithm, int64_t n_bytes);

  VirtualTime& time_;
  const ClusterSpec& cluster_;
  const CollectiveTimes& times_;
  SimNetworkOptions options_;
  std::deque<SimGroup> groups_;
  std::set<std::pair<int, int>> message_pairs_;
  std::map<std::array<int, 3>, Channel> channels_;
  std::map<std::tuple<bool, int64_t>, std::vector<TimedAlgorithm>> message_times_;
  std::set<CollectiveKey> missing_;
};

}  // namespace testbed
