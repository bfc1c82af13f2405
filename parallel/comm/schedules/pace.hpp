// What the links add to an algorithm's steps: latencies and reached rates (LinkTiming), for ranks
// of one node, and across nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/group_placement.hpp"

namespace testbed {

struct Pace {
  double start_s = 0.0;      // once per collective
  double fill_s = 0.0;       // filling of the pipeline, and the copy of the own part
  double step_s = 0.0;       // per latency step
  double bytes_per_s = 0.0;  // of a rank alone on its link; 0: the line rate
};

// The entry of LinkTiming::of for a collective. Messages, broadcasts and barriers all go by
// "send/direct"; a tree goes by the ring's, whose kernel and protocols it shares.
std::string timing_key(CommOp op, CommAlgorithm algorithm);

// The calibration that a link has for such a key; nullptr: none. Of a machine whose all-gather was
// measured by direct exchange, that stands for the exchanges that send as much in each pair the
// other way (reduce-scatter) or both (all-to-all) where they have none of their own.
const std::vector<ProtocolTiming>* protocols_of(const LinkTiming& timing, const std::string& key);

struct Sharers {
  int n_ranks = 1;
  int n_sharing = 1;  // of them, on the bus that the link hangs on
  int n_nodes = 1;
};
// sent_bytes is what one rank sends in all over this link, of the payload n_bytes of n_ranks.
Pace pace_on(const LinkSpec& link,
             const std::string& key,
             int64_t n_bytes,
             const Sharers& sharers,
             double sent_bytes);

}  // namespace testbed
