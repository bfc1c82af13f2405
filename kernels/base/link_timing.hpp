// LinkTiming: what collectives really reach over a link. Calibration read from
// configs/links/*.toml, each with its source; an empty one is the ideal link (no latency, the line
// rate). docs/calibration.md says how it is fitted and carried to links that have no table.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace testbed {

// One way a library runs an algorithm: NCCL's LL, LL128 and Simple protocols differ in what a step
// costs and in the share of the line rate that is left. Time of a collective of payload S on n
// ranks:
//   start_s + steps * step_s + S / n * copy_s_per_byte + x + 2 sqrt(fill_s * x),
// x = bytes sent per rank / rate(n); steps is the algorithm's (collective_schedule.hpp), the
// square root is the filling of the pipeline with the best chunk size.
struct ProtocolTiming {
  std::string name;                // "ll128", "simple"; "" if there is only one
  int64_t max_bytes = 0;           // payload / n up to which it is used; 0: no limit
  int max_nodes = 0;               // of the group, up to which it is used; 0: no limit
  int64_t most_payload_bytes = 0;  // of the last: a larger payload takes another algorithm; 0: none
  double start_s = 0.0;
  double step_s = 0.0;
  double bytes_per_s = 0.0;      // sent per rank at n = 2, one direction; 0: the line rate
  double sharing = 0.0;          // rate(n) = bytes_per_s * (2/n)^sharing: ranks that share one bus
  double copy_s_per_byte = 0.0;  // of the rank's own part, within its memory
  double fill_s = 0.0;
  bool operator==(const ProtocolTiming&) const = default;
};

struct LinkTiming {
  // By "op/algorithm": "all_reduce/ring". Protocols by rising max_nodes, then max_bytes; the first
  // that admits the payload is used. Exchanges of a mixture's tokens are "dispatch/..." and
  // "combine/...": steps are log2 of the nodes, payload / n is what the busiest rank has for all,
  // and the kernel is not used above the last protocol's max_bytes.
  std::map<std::string, std::vector<ProtocolTiming>> of;
  std::string source;  // table and fit error; "none" for the ideal link
  bool operator==(const LinkTiming&) const = default;
};

}  // namespace testbed
