// SimCommunicator: one rank's end of a group of a simulated run. Nothing of simulated memory moves,
// only its time passes; host memory (sampled ids, counts) is really copied.
#pragma once

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/sim_network.hpp"

namespace testbed {

class SimCommunicator final : public Communicator {
 public:
  // channel: keeps the messages of several communicators of one axis apart.
  SimCommunicator(
      SimNetwork& network, SimGroup& group, int rank_in_group, SimClock& clock, int channel);
  std::string_view transport() const override { return transport_; }

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t n_bytes) const override;
  CommAlgorithm all_gather_algorithm(int64_t n_bytes) const override;
  CommAlgorithm reduce_scatter_algorithm(int64_t n_bytes) const override;
  int64_t wire_bytes_of(CommOp op,
                        CommAlgorithm algorithm,
                        int64_t n_bytes,
                        int64_t element_bytes) const override;

 private:
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

  SimNetwork& network_;
  SimGroup& group_;
  SimClock& clock_;
  int channel_;
  size_t parity_ = 0;
  std::string transport_;
};

}  // namespace testbed
