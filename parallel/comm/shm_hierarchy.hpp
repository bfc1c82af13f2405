// All-reduces of a group that spans hosts with several ranks on some: within each host through
// shared memory, across hosts by MPI messages. With as many parts of the payload as the smallest
// host has ranks, local rank l of each host sums part l of its host's ranks, the l of all hosts sum
// these sums, and each hands the result on within its host. The order of the sum: in each host the
// ranks in rank order, then the hosts by their first rank; all in f32, rounded once. What crosses
// between hosts is F32, also of BF16. Everything else goes by messages of the whole group, but send
// and receive within a host through its shared memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/shm_communicator.hpp"

namespace testbed {

class ShmHierarchy final : public Communicator {
 public:
  struct Parts {
    std::unique_ptr<Communicator> messages;  // all ranks
    std::unique_ptr<ShmCommunicator> local;  // this host's; nullptr: this rank is alone on it
    std::unique_ptr<Communicator> across;    // local rank l of each host, hosts in order; nullptr
                                             // for a local rank beyond n_parts
    int n_parts = 1;
    AllReduceSizes across_sizes;
  };
  ShmHierarchy(Parts parts, const GroupInfo& group);

  void progress() override;
  std::string_view transport() const override { return "mixed"; }
  std::string tune() override;
  const ShmCommunicator* local() const { return parts_.local.get(); }

  // Ranks of this group, by host, hosts by first appearance.
  static std::vector<std::vector<int>> ranks_by_host(const GroupInfo& group);

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t /*n_bytes*/) const override {
    return CommAlgorithm::hierarchical;
  }
  int64_t wire_bytes_of(CommOp op,
                        CommAlgorithm algorithm,
                        int64_t n_bytes,
                        int64_t element_bytes) const override;

 private:
  class Message;
  void do_all_reduce(TensorView x, CommAlgorithm algorithm) override;
  void do_all_gather(TensorView local, TensorView out) override;
  void do_reduce_scatter(TensorView x, TensorView out) override;
  RowsSent do_all_to_all(TensorView send,
                         std::span<const int64_t> send_rows,
                         TensorView recv,
                         std::span<const int64_t> recv_rows,
                         const RowExchange& exchange) override;
  void do_broadcast(TensorView x, int root) override;
  void do_barrier() override;
  std::unique_ptr<Pending::Work> do_send(TensorView x, int target) override;
  std::unique_ptr<Pending::Work> do_recv(TensorView x, int source) override;
  bool is_local(int peer) const { return group().node(peer) == group().node(rank()); }

  Parts parts_;
  std::vector<int> locals_;      // [local size], ranks of this group
  std::vector<int> local_rank_;  // [size], of each on its host
  std::vector<float> sums_;      // of this rank's part; kept between calls
};

}  // namespace testbed
