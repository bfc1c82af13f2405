// NcclWorld: the job as NCCL sees it, and the groups of GPUs made from it. One per process, made
// once its GPU is set. A rank that does not come is named within the deadline.
#pragma once

#include <memory>
#include <string>

#include "kernels/base/clock.hpp"
#include "kernels/cuda/queue.hpp"
#include "parallel/comm/control.hpp"
#include "parallel/comm/mpi_world.hpp"
#include "parallel/comm/nccl_comms.hpp"
#include "parallel/comm/nccl_communicator.hpp"

namespace testbed {

class NcclWorld {
 public:
  // All ranks of the job together. What it is given outlives it, and it the groups. The clock
  // stamps their operations. The deadline is of every wait for NCCL or, on the queue, for the
  // device.
  NcclWorld(const MpiWorld& world,
            ControlChannel& control,
            cuda::Queue& queue,
            const Clock& clock,
            double deadline_s);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  // The GPUs of the ranks of `host`, a group over MPI, which the new one uses for its barrier. All
  // ranks of the job call it together, each with its own group, all of one size. messages: it sends
  // and receives too.
  std::unique_ptr<NcclCommunicator> make_group(Communicator& host, bool messages);
  // The same of groups that need not be of one size, for collectives only: a rank that is in none
  // gives itself alone.
  std::unique_ptr<NcclCommunicator> make_uneven_group(Communicator& host);

 private:
  void init(int rank, int size, ControlChannel& control);
  NcclComm& split(const GroupInfo& group);

  cuda::Queue& queue_;
  const Clock& clock_;
  NcclComms comms_;
  NcclComm* world_ = nullptr;  // in comms_, only split from; none if there is one rank
  int watcher_ = -1;
};

}  // namespace testbed
