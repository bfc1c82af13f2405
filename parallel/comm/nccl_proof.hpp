// What a group's operations went over and how, by NCCL's debug log of this process and of the
// group's rank 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/layout.hpp"
#include "parallel/comm/nccl_log.hpp"

namespace testbed {

struct LinkProof {
  std::string transport = "unknown";   // transport_name; "unknown": the log does not tell
  std::vector<NcclChoice> choices;     // by size; the same on all ranks
  std::optional<std::string> why_not;  // the layout is not what was used
};

// The ranks of the group call it together, once each has done what it will do: NCCL connects at
// first use. handles: the group's ncclComm_t as numbers. host: the group between the hosts.
LinkProof prove_links(const std::optional<NcclLogReport>& log,
                      const std::vector<uint64_t>& handles,
                      Communicator& host,
                      P2pLink p2p,
                      Layout layout);

}  // namespace testbed
