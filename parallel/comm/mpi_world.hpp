// MpiWorld: the job as MPI sees it: who runs where, and the communicators made from it. One per
// process, made in launch/.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/control.hpp"
#include "parallel/comm/mpi_communicator.hpp"
#include "parallel/comm/mpi_wait.hpp"

namespace testbed {

struct MpiOptions {
  // Large messages between ranks of a host are fetched by the receiver (Open MPI's single-copy
  // mechanism, if the kernel allows it), so that they arrive while the sender computes: pipelines
  // need that. Without it they go through shared buffers with the sender's help, which is faster
  // up to 8 MiB where both wait anyway, as in an all-reduce.
  bool receiver_fetches = false;
};

class MpiWorld {
 public:
  // Starts MPI. Sets two Open MPI parameters first, unless the user has: no single-copy mechanism
  // (faster up to 8 MiB), and yielding when the host's ranks exceed the cores they may use.
  explicit MpiWorld(const MpiOptions& options = {});
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& host() const { return hosts_[static_cast<size_t>(rank_)]; }
  // [size]. Equal exactly where ranks share memory, and so a clock: two machines that call
  // themselves alike become "name" and "name#2".
  const std::vector<std::string>& hosts() const { return hosts_; }
  int local_rank() const;
  int n_local_ranks() const;
  // That this host's ranks may use together: the union of their affinity masks at the start.
  int n_usable_cores() const { return n_usable_cores_; }
  // The parameters of Open MPI that the environment, and so mpirun, sets, what it tells its
  // processes for its own purposes left out; for the fingerprint.
  std::map<std::string, std::string> settings() const;
  std::string library() const;

  // How communicators made from now on wait. By default ranks spin if they fit the usable cores.
  void set_waiting(const MpiWaiting& waiting) { waiting_ = waiting; }
  const MpiWaiting& waiting() const { return waiting_; }

  // The ranks of the group call it together. largest_message: a test's way to see messages in
  // pieces.
  std::unique_ptr<Communicator> make_group(const std::vector<int>& world_ranks,
                                           Axis axis,
                                           const AllReduceSizes& sizes = {},
                                           int64_t largest_message = mpi_largest_message);
  std::unique_ptr<ControlChannel> make_control();

  // Ends every process of the job, whatever they wait for.
  [[noreturn]] void abort(int exit_code);

 private:
  int rank_ = 0;
  int size_ = 1;
  int n_usable_cores_ = 1;
  bool shared_memory_ = true;  // ranks of one host exchange messages through it
  std::vector<std::string> hosts_;
  MpiWaiting waiting_;
};

// What a group's messages travel over: "none", "shm", "tcp" or "mixed".
std::string transport_of(const std::vector<std::string>& hosts, bool shared_memory);

// Whether Open MPI's list of transports (parameter btl: "", "a,b" or "^a,b") leaves shared memory
// in.
bool allows_shared_memory(const std::string& btl);

// Why a process without peers is not what was wanted: a launcher says there are more (D17); nullopt
// if all is well.
std::optional<std::string> singleton_under_launcher(int world_size);

}  // namespace testbed
