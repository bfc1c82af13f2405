// SoloCommunicator: a group of one rank. Nothing is sent; a reference computed on one rank uses it.
#pragma once

#include <cstring>

#include "parallel/comm/communicator.hpp"

namespace testbed {

class SoloCommunicator final : public Communicator {
 public:
  explicit SoloCommunicator(int world_rank)
      : Communicator({.axis = Axis::tp, .rank = 0, .size = 1, .world_ranks = {world_rank}}) {}
  std::string_view transport() const override { return "none"; }

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t /*n_bytes*/) const override {
    return CommAlgorithm::none;
  }

 private:
  static void copy(TensorView from, TensorView into) {
    const auto n_bytes = static_cast<size_t>(from.n_bytes());
    if (n_bytes > 0 && from.data() != into.data()) {
      std::memcpy(into.data(), from.data(), n_bytes);
    }
  }
  void do_all_reduce(TensorView /*x*/, CommAlgorithm /*algorithm*/) override {}
  void do_all_gather(TensorView local, TensorView out) override { copy(local, out); }
  void do_reduce_scatter(TensorView x, TensorView out) override { copy(x, out); }
  RowsSent do_all_to_all(TensorView send,
                         std::span<const int64_t> /*send_rows*/,
                         TensorView recv,
                         std::span<const int64_t> /*recv_rows*/,
                         const RowExchange& /*exchange*/) override {
    copy(send, recv);
    return {};
  }
  void do_broadcast(TensorView /*x*/, int /*root*/) override {}
  void do_barrier() override {}
  std::unique_ptr<Pending::Work> do_send(TensorView /*x*/, int /*target*/) override {
    check_failed("a group of one sends nothing", __FILE__, __LINE__);
  }
  std::unique_ptr<Pending::Work> do_recv(TensorView /*x*/, int /*source*/) override {
    check_failed("a group of one receives nothing", __FILE__, __LINE__);
  }
};

}  // namespace testbed
