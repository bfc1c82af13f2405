// `testbed accept` on this machine's processors, and what it is made of wherever it runs.
#pragma once

#include <memory>

#include "parallel/comm/mpi_world.hpp"
#include "parallel/comm/watchdog.hpp"
#include "runtime/commands/accept.hpp"
#include "runtime/config/commands.hpp"

namespace testbed {

// All processes call it together; gives what the work does.
int accept_on_cpu(MpiWorld& world,
                  const AcceptConfig& config,
                  const AcceptanceProfile& profile,
                  const AcceptWork& work);

// The profile that was asked for, or where none was that of processors; for "cpu" or "cuda". All
// processes call it together. Throws ConfigError for one that is of another device, or that is not
// the same for all ranks.
AcceptanceProfile choose_profile(ControlChannel& control,
                                 const AcceptConfig& config,
                                 const std::string& device);

// Beside the cases: rank 0's is to speak first.
std::unique_ptr<Watchdog> make_watchdog(const MpiWorld& world);

// What the ranks tell rank 0 of a case, under a deadline that may change (AcceptContext::judging).
class JudgingChannel {
 public:
  explicit JudgingChannel(MpiWorld& world);
  ControlChannel& channel() { return *channel_; }
  std::function<void(double)> set_patience() {
    return [deadline_s = deadline_s_](double s) { *deadline_s = s; };
  }

 private:
  std::shared_ptr<double> deadline_s_ = std::make_shared<double>(0.0);
  std::unique_ptr<ControlChannel> channel_;
};

// Carries out --inject on all groups made from now on; throws ConfigError for ranks that there are
// not.
void install_faults(MpiWorld& world, const AcceptConfig& config, FaultSurroundings surroundings);

}  // namespace testbed
