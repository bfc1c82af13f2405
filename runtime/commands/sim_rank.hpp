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
  SimRank(const SimJob& job, int rank, SimGroup& tp, SimGroup& pp, const MemoryRecord& planned);
  SimRank(const SimRank&) = delete;
  SimRank& operator=(const SimRank&) = delete;
  const RankContext& context() const { return context_; }

 private:
  std::function<void()> delay_of(const DelayInjection& delay);

  SimClock clock_;
  SimControl control_;
  SimCommunicator tp_;
  SimCommunicator pp_;
  SimCommunicator pp_tokens_;
  SimDevice device_;
  RankContext context_;
};

}  // namespace testbed
