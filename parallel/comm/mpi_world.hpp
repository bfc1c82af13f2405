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
#include "parallel/comm/inject.hpp"
#include "parallel/comm/mpi_communicator.hpp"
#include "parallel/comm/mpi_wait.hpp"
#include "parallel/comm/op_board.hpp"
#include "parallel/comm/shm_communicator.hpp"

namespace testbed {

struct MpiOptions {
  // Large messages between ranks of a host are fetched by the receiver (Open MPI's single-copy
  // mechanism, if the kernel allows it), so that they arrive while the sender computes: pipelines
  // need that. Without it they go through shared buffers with the sender's help, which is faster
  // up to 8 MiB where both wait anyway, as in an all-reduce.
  bool receiver_fetches = false;
};

// How groups of CPU ranks exchange within a host. Tests try each way.
struct SharedMemoryUse {
  bool enabled = true;    // else by MPI's messages
  bool may_fetch = true;  // large messages may be read from the sender's memory
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

  // How groups made from now on exchange within a host, where MPI may use shared memory.
  void set_shared_memory(const SharedMemoryUse& use) { shared_memory_use_ = use; }
  // A test's way to have several hosts: where groups made from now on believe the ranks to be.
  void pretend_hosts(std::vector<std::string> hosts);
  // A tensor on which groups of one host all-reduce in place (ShmHeap); the world outlives it.
  Tensor allocate(DType dtype, Shape shape) { return shared_->heap.allocate(dtype, shape); }
  // "own shared memory", or "MPI: " and the reason, of the groups made so far; "" if no group has
  // had two ranks on this host.
  const std::string& exchange_within_host() const { return exchange_within_host_; }

  // Given to groups made from now on, all of which then count their operations together. nullptr:
  // there are none (any more).
  void install(std::shared_ptr<Faults> faults) { faults_ = std::move(faults); }
  const std::shared_ptr<Faults>& faults() const { return faults_; }
  // What the ranks of this host are at; as long as the world.
  OpBoard& board() const { return *board_; }

  // The ranks of the group call it together. On one host it shares memory (ShmCommunicator), with
  // several ranks on some of its hosts it is a ShmHierarchy, else it exchanges MPI messages; so it
  // does, too, where memory cannot be shared, with largest_message (a test's way to see messages in
  // pieces) or a host_clock.
  std::unique_ptr<Communicator> make_group(const std::vector<int>& world_ranks,
                                           Axis axis,
                                           const AllReduceSizes& sizes = {},
                                           int64_t largest_message = mpi_largest_message,
                                           const Clock* host_clock = nullptr);
  // Of small host tensors (GroupInfo::host); the clock stamps what it does.
  std::unique_ptr<Communicator> make_host_group(const std::vector<int>& world_ranks,
                                                Axis axis,
                                                const Clock& clock = steady_clock()) {
    return make_group(world_ranks, axis, {}, mpi_largest_message, &clock);
  }
  // Its waits move on the messages of the groups made so far and later.
  std::unique_ptr<ControlChannel> make_control();

  // Ends every process of the job, whatever they wait for.
  [[noreturn]] void abort(int exit_code);

 private:
  std::unique_ptr<Communicator> make_bare_group(const std::vector<int>& world_ranks,
                                                Axis axis,
                                                const AllReduceSizes& sizes,
                                                int64_t largest_message,
                                                const Clock* host_clock);
  std::unique_ptr<Communicator> make_messages(GroupInfo group,
                                              const AllReduceSizes& sizes,
                                              int64_t largest_message = mpi_largest_message,
                                              const Clock& clock = steady_clock());
  std::unique_ptr<Communicator> share_memory(std::unique_ptr<Communicator> messages,
                                             const AllReduceSizes& sizes);
  std::unique_ptr<Communicator> make_hierarchy(std::unique_ptr<Communicator> messages,
                                               const AllReduceSizes& sizes);
  ShmCommunicator::Made make_shared(Communicator& messages, const AllReduceSizes& sizes);
  GroupInfo group_of(const std::vector<int>& world_ranks, Axis axis) const;
  std::vector<std::string> hosts_of(const std::vector<int>& world_ranks) const;
  MpiWaiting waiting_with_whereabouts() const;
  MpiWaiting waiting_with_progress() const;

  int rank_ = 0;
  int size_ = 1;
  int n_usable_cores_ = 1;
  bool shared_memory_ = true;  // ranks of one host exchange messages through it
  std::vector<std::string> hosts_;
  MpiWaiting waiting_;
  SharedMemoryUse shared_memory_use_;
  std::string exchange_within_host_;
  std::shared_ptr<ShmCommunicator::Shared> shared_ = std::make_shared<ShmCommunicator::Shared>();
  std::unique_ptr<OpBoard> board_;
  std::shared_ptr<Faults> faults_;
};

// What a group's messages travel over: "none", "shm", "tcp" or "mixed".
std::string transport_of(const std::vector<std::string>& hosts, bool shared_memory);

// Whether Open MPI's list of transports (parameter btl: "", "a,b" or "^a,b") leaves shared memory
// in.
bool allows_shared_memory(const std::string& btl);

// Why a process without peers is not what was wanted: a launcher says there are more (D17); nullopt
// if all is well.
std::optional<std::string> singleton_under_launcher(int world_size);

// The same before MPI starts, where Open MPI would end a task of srun with a page of text and exit
// code 1: srun offers its tasks nothing to find each other by.
std::optional<std::string> task_without_pmi();

}  // namespace testbed
