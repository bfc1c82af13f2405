// A group's communicator between hosts that says or does something else than the real one: what a
// test injects.
#pragma once

#include <numeric>

#include "parallel/comm/communicator.hpp"

namespace testbed {

class HostTwin final : public Communicator {
 public:
  enum class Nodes : uint8_t { as_they_are, one_each };
  HostTwin(Communicator& real, Nodes nodes, float added)
      : Communicator(group_of(real, nodes)), real_(real), added_(added) {}
  std::string_view transport() const override { return real_.transport(); }

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t /*n_bytes*/) const override {
    return CommAlgorithm::direct;
  }

 private:
  static GroupInfo group_of(const Communicator& real, Nodes nodes) {
    GroupInfo group = real.group();
    if (nodes == Nodes::one_each) {
      group.node_of.resize(static_cast<size_t>(group.size));
      std::iota(group.node_of.begin(), group.node_of.end(), 0);
    }
    return group;
  }
  void do_all_reduce(TensorView x, CommAlgorithm /*algorithm*/) override {
    real_.all_reduce(x);
    if (x.dtype() == DType::F32) x.as<float>()[0] += added_;
  }
  void do_all_gather(TensorView local, TensorView out) override { real_.all_gather(local, out); }
  void do_reduce_scatter(TensorView x, TensorView out) override { real_.reduce_scatter(x, out); }
  RowsSent do_all_to_all(TensorView /*send*/,
                         std::span<const int64_t> /*send_rows*/,
                         TensorView /*recv*/,
                         std::span<const int64_t> /*recv_rows*/,
                         const RowExchange& /*exchange*/) override {
    return {};
  }
  void do_broadcast(TensorView x, int root) override { real_.broadcast(x, root); }
  void do_barrier() override { real_.barrier(); }
  std::unique_ptr<Pending::Work> do_send(TensorView /*x*/, int /*target*/) override { return {}; }
  std::unique_ptr<Pending::Work> do_recv(TensorView /*x*/, int /*source*/) override { return {}; }

  Communicator& real_;
  float added_;
};

}  // namespace testbed
