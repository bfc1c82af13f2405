// SimRank: everything that one rank of a simulated run is given.
#pragma once

#include <array>
#include <map>
#include <string>

#include "parallel/comm/sim_communicator.hpp"
#include "parallel/comm/sim_control.hpp"
#include "runtime/commands/rank_context.hpp"

namespace testbed {

// What the ranks of a simulated run share.
struct SimJob {
  const RunConfig& config;
  const RunInputs& inputs;
  Mesh mesh;
  SimNetwork& network;
  SimControlHub& hub;
  std::map<Axis, std::string> transports = {};
};

class SimRank {
 public:
  // groups: those that the rank is in.
  SimRank(const SimJob& job,
          int rank,
          const std::map<Axis, SimGroup*>& groups,
          const MemoryRecord& planned);
  SimRank(const SimRank&) = delete;
  SimRank& operator=(const SimRank&) = delete;
  const RankContext& context() const { return context_; }

 private:
  // channel: keeps apart the messages of communicators between the same ranks.
  SimCommunicator communicator(const SimJob& job, int rank, SimGroup& group, int channel);

  SimClock clock_;
  SimControl control_;
  SimCommunicator tp_;
  SimCommunicator cp_;
  SimCommunicator ep_;
  SimCommunicator pp_;
  SimCommunicator pp_tokens_;
  SimDevice device_;
  RankContext context_;
};

}  // namespace testbed
