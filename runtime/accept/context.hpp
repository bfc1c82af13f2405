// AcceptContext: all that a rank's part of an acceptance is given. The stages never know which kind
// of device they are on.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/control.hpp"
#include "parallel/comm/op_row.hpp"
#include "parallel/comm/watchdog.hpp"
#include "runtime/accept/acceptance_profile.hpp"
#include "runtime/commands/rank_context.hpp"
#include "runtime/config/commands.hpp"

namespace testbed {

struct AcceptContext {
  const AcceptConfig& config;
  const AcceptanceProfile& profile;
  int rank = 0;
  int size = 1;
  const std::vector<std::string>& hosts;  // [size]
  ControlChannel& control;
  // What ranks tell rank 0 of a case, and are told: apart from the stages' messages, of which a
  // failure may leave some on their way. Its waits end after what set_patience said last.
  ControlChannel& judging;
  std::function<void(double deadline_s)> set_patience;
  Watchdog& watchdog;  // beside every case
  // The message that this rank has waited for in vain, if it has (OpBoard::awaited_message), and
  // the last one that it gave away (OpRow::given).
  std::function<std::optional<OpRow::Operation>()> awaited_message;
  std::function<std::optional<OpRow::Operation>()> given_message;
  // Where ranks were last seen, as the end of a sentence (OpBoard::whereabouts).
  std::function<std::string(const std::vector<int>& ranks)> whereabouts;
  Device& device;       // this rank's
  MachineInfo machine;  // of this rank
  // What preflight compares between hosts and ranks: "testbed", "mpi", "kernel", "device.0.ecc",
  // ...
  std::function<std::map<std::string, std::string>()> facts;
  // A group of these world ranks. All ranks of the job call it together, each with the group that
  // it is in; one that is in none gives itself alone. Only groups of all ranks carry messages.
  std::function<std::unique_ptr<Communicator>(const std::vector<int>& world_ranks, Axis axis)>
      make_group;
  // Makes what a run of this configuration is given and hands it on; all ranks call it together.
  std::function<void(const RunConfig&, const std::function<void(const RankContext&)>&)> with_rank;
};

}  // namespace testbed
