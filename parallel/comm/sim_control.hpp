// SimControl: the control channel of one rank of a simulated run. What it carries takes no time,
// but nothing arrives before it was sent.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "kernels/sim/sim_device.hpp"
#include "kernels/sim/virtual_time.hpp"
#include "parallel/comm/control.hpp"

namespace testbed {

// What the ranks' control channels share.
class SimControlHub {
 public:
  // no_waiting: clocks stay as they are (what if nobody waited for others).
  SimControlHub(VirtualTime& time, int size, bool no_waiting);

 private:
  friend class SimControl;
  struct Message {
    Bytes bytes;
    double sent_s;
  };
  struct Queue {
    int semaphore = -1;
    std::deque<Message> messages;
  };
  Queue& queue(int source, int target);

  VirtualTime& time_;
  int size_;
  bool no_waiting_;
  int barrier_;
  int n_arrived_ = 0;
  double last_arrival_s_ = 0.0;
  double left_s_ = 0.0;
  std::vector<Bytes> slots_;  // [size]
  std::map<std::pair<int, int>, Queue> queues_;
};

class SimControl final : public ControlChannel {
 public:
  SimControl(SimControlHub& hub, int rank, std::string host, SimClock& clock)
      : hub_(hub), rank_(rank), host_(std::move(host)), clock_(clock) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_.size_; }
  std::string host() const override { return host_; }
  Bytes broadcast(Bytes from_root, int root) override;
  std::vector<Bytes> gather(Bytes mine, int root) override;
  std::vector<Bytes> all_gather(Bytes mine) override;
  void barrier() override;  // all leave at the time at which the last one arrives
  void post(Bytes message, int target) override;
  Bytes receive(int source) override;

 private:
  void meet();  // a barrier that leaves the clocks alone

  SimControlHub& hub_;
  int rank_;
  std::string host_;
  SimClock& clock_;
};

// The control channel of a job of one process that simulates many ranks.
class SoloControl final : public ControlChannel {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string host() const override { return "localhost"; }
  Bytes broadcast(Bytes from_root, int /*root*/) override { return from_root; }
  std::vector<Bytes> gather(Bytes mine, int /*root*/) override { return {std::move(mine)}; }
  std::vector<Bytes> all_gather(Bytes mine) override { return {std::move(mine)}; }
  void barrier() override {}
  void post(Bytes message, int /*target*/) override { to_itself_.push_back(std::move(message)); }
  Bytes receive(int source) override;

 private:
  std::deque<Bytes> to_itself_;
};

}  // namespace testbed
