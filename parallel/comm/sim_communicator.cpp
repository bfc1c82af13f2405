#include "parallel/comm/sim_communicator.hpp"

#include <cstring>

#include "parallel/comm/wire_bytes.hpp"

namespace testbed {
namespace {

GroupInfo info_of(const SimGroup& group, int rank_in_group) {
  GroupInfo info = group.info;
  info.rank = rank_in_group;
  return info;
}

Bytes host_copy(TensorView x) {
  if (is_simulated_memory(x.data())) return {};
  const auto* begin = static_cast<const std::byte*>(x.data());
  return {begin, begin + x.n_bytes()};
}

// Nothing of simulated memory was taken along.
void copy_to_host(const Bytes& bytes, void* target, int64_t n_bytes) {
  if (is_simulated_memory(target)) return;
  CHECK(static_cast<int64_t>(bytes.size()) == n_bytes);
  if (n_bytes > 0) std::memcpy(target, bytes.data(), bytes.size());
}

class SendWork final : public Pending::Work {
 public:
  SendWork(SimNetwork& network, SimClock& clock, std::shared_ptr<SimMessage> message)
      : network_(network), clock_(clock), message_(std::move(message)) {}
  void wait() override { network_.wait_sent(*message_, clock_); }

 private:
  SimNetwork& network_;
  SimClock& clock_;
  std::shared_ptr<SimMessage> message_;
};

class ReceiveWork final : public Pending::Work {
 public:
  ReceiveWork(SimNetwork& network, SimClock& clock, std::array<int, 3> from, TensorView into)
      : network_(network),
        clock_(clock),
        from_(from),
        number_(network.post_receive(from[0], from[1], from[2])),
        into_(into) {}
  void wait() override {
    const std::shared_ptr<SimMessage> message =
        network_.take(from_[0], from_[1], from_[2], number_);
    network_.wait_received(*message, clock_);
    copy_to_host(message->data, into_.data(), into_.n_bytes());
  }

 private:
  SimNetwork& network_;
  SimClock& clock_;
  std::array<int, 3> from_;  // source, target, channel
  int64_t number_;
  TensorView into_;
};

}  // namespace

SimCommunicator::SimCommunicator(
    SimNetwork& network, SimGroup& group, int rank_in_group, SimClock& clock, int channel)
    : Communicator(info_of(group, rank_in_group), clock),
      network_(network),
      group_(group),
      clock_(clock),
      channel_(channel),
      transport_(network.transport_of(group)) {}

CommAlgorithm SimCommunicator::all_reduce_algorithm(int64_t n_bytes) const {
  return network_.algorithms(group_, CommOp::all_reduce, n_bytes).front().algorithm;
}

CommAlgorithm SimCommunicator::all_gather_algorithm(int64_t n_bytes) const {
  return network_.algorithms(group_, CommOp::all_gather, n_bytes).front().algorithm;
}

int64_t SimCommunicator::wire_bytes_of(CommOp op,
                                       CommAlgorithm algorithm,
                                       int64_t n_bytes,
                                       int64_t element_bytes) const {
  return wire_bytes(op, algorithm, n_bytes, element_bytes, rank(), group_.placement);
}

void SimCommunicator::do_all_reduce(TensorView x, CommAlgorithm algorithm) {
  if (size() > 1) network_.collective(group_, clock_, CommOp::all_reduce, algorithm, x.n_bytes());
}

void SimCommunicator::do_all_gather(TensorView local, TensorView out) {
  std::vector<Bytes>& slots = group_.gathered[parity_];
  parity_ = 1 - parity_;
  slots[static_cast<size_t>(rank())] = host_copy(local);
  const int64_t n_bytes = out.n_bytes();
  if (size() > 1) {
    network_.collective(group_, clock_, CommOp::all_gather, all_gather_algorithm(n_bytes), n_bytes);
  }
  for (int r = 0; r < size(); ++r) {
    copy_to_host(slots[static_cast<size_t>(r)],
                 static_cast<std::byte*>(out.data()) + r * local.n_bytes(),
                 local.n_bytes());
  }
}

void SimCommunicator::do_broadcast(TensorView x, int /*root*/) {
  if (size() > 1)
    network_.collective(group_, clock_, CommOp::broadcast, CommAlgorithm::direct, x.n_bytes());
}

void SimCommunicator::do_barrier() {
  network_.collective(group_, clock_, CommOp::broadcast, CommAlgorithm::direct, 0);
}

std::unique_ptr<Pending::Work> SimCommunicator::do_send(TensorView x, int target) {
  const std::vector<int>& ranks = group().world_ranks;
  return std::make_unique<SendWork>(network_,
                                    clock_,
                                    network_.send(ranks[static_cast<size_t>(rank())],
                                                  ranks[static_cast<size_t>(target)],
                                                  channel_,
                                                  x.n_bytes(),
                                                  host_copy(x),
                                                  clock_));
}

std::unique_ptr<Pending::Work> SimCommunicator::do_recv(TensorView x, int source) {
  const std::vector<int>& ranks = group().world_ranks;
  return std::make_unique<ReceiveWork>(
      network_,
      clock_,
      std::array<int, 3>{
          ranks[static_cast<size_t>(source)], ranks[static_cast<size_t>(rank())], channel_},
      x);
}

}  // namespace testbed
