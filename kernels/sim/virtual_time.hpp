// VirtualTime: actors on a virtual clock and flows over modelled links: the small interface behind
// which SimGrid works. libsimgrid exports MPI symbols of its own, so only the plugin
// libtestbed_sim.so links it, and that is opened at run time, with its symbols kept to itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/cluster_spec.hpp"

namespace testbed {

// Ends of flows: device d (counted over the nodes) is d; the switch of node k is n_devices + k.
// Flows between devices of one node use its links; between nodes, the devices' NICs and the fabric.
class VirtualTime {
 public:
  using FlowId = int64_t;

  virtual ~VirtualTime() = default;

  // Runs the actors to their ends, all starting at the clock as it stands. Nothing may escape an
  // actor but what VirtualTime itself throws through it to end it. Returns the indices of those
  // that cannot go on: each waits for something that will not come.
  virtual std::vector<size_t> run(const std::vector<std::function<void()>>& actors) = 0;

  // The rest is for use within actors. Times are seconds from the start of run().
  virtual double now() const = 0;
  // Returns at once for a time that has passed.
  virtual void sleep_until(double time_s) = 0;
  // n_bytes from one end to another, from now on; shares links with what else is on them.
  virtual FlowId start_flow(int source, int target, double n_bytes) = 0;
  // Returns when the flow has arrived, and when that was. Any number of actors may wait for a flow
  // until one of them forgets it.
  virtual double wait_flow(FlowId flow) = 0;
  virtual void forget_flow(FlowId flow) = 0;
  // A barrier of n actors, to be used again and again.
  virtual int make_barrier(int n) = 0;
  virtual void wait_barrier(int barrier) = 0;
  // A counting semaphore, 0 at first.
  virtual int make_semaphore() = 0;
  virtual void release(int semaphore) = 0;
  virtual void acquire(int semaphore) = 0;
};

// The platform of a cluster. One at a time in a process, used by the thread that makes it. Throws
// ConfigError if the plugin or its library is missing.
std::unique_ptr<VirtualTime> make_virtual_time(const ClusterSpec& cluster);

// The bytes that a message takes up on the line when its protocol reaches at most rate_bytes_per_s
// there (0: no cap): headers and flags travel too, so what it cannot use, nobody else can.
double occupied_bytes(const ClusterSpec& cluster,
                      bool same_node,
                      int64_t n_bytes,
                      double rate_bytes_per_s);

}  // namespace testbed
