// NcclCommunicator: a group of GPUs. Every operation is a call on the Queue, for a stream of the
// group's own: it begins when the compute stream has come there, and of a collective the compute
// stream waits for the end; the host waits for nothing. So operations are part of the graphs of
// replayed sections, byte-equal as long as addresses and sizes are.
//
// Messages travel on lanes, each an NCCL communicator and a stream, since what shares one runs in
// the order posted, and a send is done only when its receiver has it. Were a ring's sends and
// receives to share a stream, a rank that posts its send first would wait for one that does too,
// and one that posts its receive first could not send meanwhile. The lane of a message is the
// sender's group rank modulo 2, and of an odd group's last rank, whose successor is rank 0, a
// third: so neighbours on a ring send on different lanes, and what a rank sends to its successor
// shares none with what it receives from its predecessor. With sends only to successors, as in
// rings and pipelines, each lane then joins disjoint pairs of ranks, and between two ranks messages
// are posted in the same order at both ends: no lane holds back what another waits for, and nothing
// blocks that MPI's messages would not. Within a replayed section a message must be waited for in
// the section that posts it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/queue.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nccl_comms.hpp"
#include "parallel/comm/peer_all_reduce.hpp"

namespace testbed {

// What carries a group's messages apart from each other.
constexpr int nccl_message_lanes(int size) { return size % 2 == 0 ? 2 : 3; }
constexpr int nccl_message_lane(int size, int source) {
  return size % 2 == 1 && source == size - 1 ? 2 : source % 2;
}

class NcclCommunicator final : public Communicator {
 public:
  // What NCCL takes for an operation of so many bytes; only its debug log tells.
  using Algorithms = std::function<CommAlgorithm(CommOp op, int64_t n_bytes)>;

  // comms: one for collectives, or [nccl_message_lanes] for messages and collectives; none for a
  // group of one. host: the same ranks over MPI, for the barrier; it and the queue outlive this.
  NcclCommunicator(Communicator& host,
                   cuda::Queue& queue,
                   const Clock& clock,
                   const std::vector<NcclComm*>& comms);
  ~NcclCommunicator() override;
  std::string_view transport() const override { return transport_; }
  // Of its NCCL communicators, as NCCL's debug log names them.
  std::vector<uint64_t> handles() const;
  void set_transport(std::string transport) { transport_ = std::move(transport); }
  void set_algorithms(Algorithms algorithms) { algorithms_ = std::move(algorithms); }
  // Takes the all-reduces whose sizes it has an algorithm for. Of the same ranks and queue.
  void set_peers(std::unique_ptr<PeerAllReduce> peers) { peers_ = std::move(peers); }

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t n_bytes) const override;
  CommAlgorithm all_gather_algorithm(int64_t n_bytes) const override;
  CommAlgorithm reduce_scatter_algorithm(int64_t n_bytes) const override;
  int64_t wire_bytes_of(CommOp op,
                        CommAlgorithm algorithm,
                        int64_t n_bytes,
                        int64_t element_bytes) const override;

 private:
  class Message;
  struct Lane {
    explicit Lane(NcclComm& c) : comm(c) {}
    NcclComm& comm;
    cuda::Stream stream{cuda::Stream::Priority::high};
    cuda::Event ready;  // the compute stream has come to the operation
    cuda::Event done;   // of collectives
  };
  void do_all_reduce(TensorView x, CommAlgorithm algorithm) override;
  bool fuses_add_norm(TensorView partial) const override {
    return peers_ != nullptr && peers_->takes_add_norm(partial);
  }
  void do_all_reduce_add_norm(TensorView partial,
                              TensorView residual,
                              TensorView weight,
                              float eps,
                              TensorView out) override {
    peers_->all_reduce_add_norm(partial, residual, weight, eps, out);
  }
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

  struct CallArgs;
  using Issue = void (*)(const CallArgs&, cudaStream_t);
  static void issue_all_reduce(const CallArgs& args, cudaStream_t on);
  static void issue_all_gather(const CallArgs& args, cudaStream_t on);
  static void issue_reduce_scatter(const CallArgs& args, cudaStream_t on);
  static void issue_group_start(const CallArgs& args, cudaStream_t on);
  static void issue_group_end(const CallArgs& args, cudaStream_t on);
  static void issue_send(const CallArgs& args, cudaStream_t on);
  static void issue_recv(const CallArgs& args, cudaStream_t on);
  static void issue_copy(const CallArgs& args, cudaStream_t on);

  void call(Lane& lane, const char* name, Issue issue, const CallArgs& args);
  template <typename Calls>
  void collective(Calls&& calls);
  // Between these calls to send_bytes and receive_bytes run at the same time.
  void begin_exchange(Lane& lane);
  void end_exchange(Lane& lane);
  void send_bytes(Lane& lane, const void* from, int64_t n_bytes, int target);
  void receive_bytes(Lane& lane, void* into, int64_t n_bytes, int source);
  void copy_bytes(const void* from, void* into, int64_t n_bytes, cudaStream_t on);
  template <typename Post>
  std::unique_ptr<Pending::Work> message(int source, Post&& post);
  void wait_for(int slot);
  int take_slot();

  Communicator& host_;
  cuda::Queue& queue_;
  std::string transport_ = "nccl";
  Algorithms algorithms_;
  std::unique_ptr<PeerAllReduce> peers_;
  std::deque<Lane> lanes_;
  // A message's own event. The lowest that is free is taken, so that a section that is replayed
  // takes the same ones.
  std::vector<cuda::Event> events_;
  std::vector<bool> in_flight_;
};

}  // namespace testbed
