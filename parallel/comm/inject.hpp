// Faults: carries out the injections that concern this rank (--inject).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/injection.hpp"

namespace testbed {

// Takes time without work. Spins only where spinning takes no core from another rank.
void take_time(int64_t duration_ns, bool may_spin);

// Of an element [1] that the host can reach.
void flip_bit(TensorView element, int bit);

// What the faults of a rank need to know of it.
struct FaultSurroundings {
  uint64_t seed = 0;  // of which element and bit are flipped
  bool may_spin = false;
  // Of a device that works behind the host's back: waits until it has done what it was given.
  // Empty: there is nothing to wait for.
  std::function<void()> synchronize = {};
  // Flips a bit of an element [1] that is on the device, unless the group is of host tensors.
  // Empty: the host can.
  std::function<void(TensorView element, int bit)> flip_on_device = {};
};

// Given to all communicators of the process, whose operations it counts together. Operations of a
// group of one, and of nothing, are none.
class Faults final : public CommHooks {
 public:
  // nullptr if no injection concerns the rank.
  static std::shared_ptr<Faults> of(const std::vector<Injection>& injections,
                                    int world_rank,
                                    FaultSurroundings surroundings);
  Faults(std::vector<Injection> injections, int world_rank, FaultSurroundings surroundings);

  void before(const CommRecord& record, const GroupInfo& group) override;
  void after(const CommRecord& record, const GroupInfo& group, TensorView result) override;
  bool lets_pass(const CommRecord& record, const GroupInfo& group) override;

  // How many times as long its device is to take; Device::set_slowdown.
  double slowdown() const;
  // What was done so far beyond what the labels say: "flipped bit 3 of element 17 of ...".
  const std::vector<std::string>& done() const { return done_; }

 private:
  static bool is_counted_all_reduce(const CommRecord& record, const GroupInfo& group);
  // Of that kind, about the link that this message of the rank's goes over; nullptr: none.
  const Injection* of_link(Injection::Kind kind,
                           const CommRecord& record,
                           const GroupInfo& group) const;
  void wait(int64_t duration_ns);
  void flip(const Injection& injection,
            const CommRecord& record,
            const GroupInfo& group,
            TensorView result);

  std::vector<Injection> injections_;  // that concern this rank
  int world_rank_;
  FaultSurroundings surroundings_;
  int64_t n_operations_ = 0;
  int64_t n_all_reduces_ = 0;
  std::vector<std::string> done_;
};

}  // namespace testbed
