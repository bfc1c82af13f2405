#include "parallel/comm/sim_communicator.hpp"

#include <cstring>
#include <numeric>
#include <utility>

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
void copy_part(const Bytes& bytes, int64_t begin, void* target, int64_t n_bytes) {
  if (n_bytes == 0 || is_simulated_memory(target)) return;
  CHECK(begin + n_bytes <= static_cast<int64_t>(bytes.size()));
  std::memcpy(target, bytes.data() + begin, static_cast<size_t>(n_bytes));
}
void copy_to_host(const Bytes& bytes, void* target, int64_t n_bytes) {
  CHECK(is_simulated_memory(target) || static_cast<int64_t>(bytes.size()) == n_bytes);
  copy_part(bytes, 0, target, n_bytes);
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
        posted_s_(clock.now_s()),
        into_(into) {}
  void wait() override {
    const std::shared_ptr<SimMessage> message =
        network_.take(from_[0], from_[1], from_[2], number_);
    arrived_ns_ = network_.wait_received(*message, posted_s_, clock_);
    copy_to_host(message->data, into_.data(), into_.n_bytes());
  }
  int64_t arrived_ns() const override { return arrived_ns_; }

 private:
  SimNetwork& network_;
  SimClock& clock_;
  std::array<int, 3> from_;  // source, target, channel
  int64_t number_;
  double posted_s_;
  int64_t arrived_ns_ = 0;
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

CommAlgorithm SimCommunicator::reduce_scatter_algorithm(int64_t n_bytes) const {
  return network_.algorithms(group_, CommOp::reduce_scatter, n_bytes).front().algorithm;
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

void SimCommunicator::do_reduce_scatter(TensorView x, TensorView /*out*/) {
  const int64_t n_bytes = x.n_bytes();
  if (size() == 1) return;
  network_.collective(
      group_, clock_, CommOp::reduce_scatter, reduce_scatter_algorithm(n_bytes), n_bytes);
}

Communicator::RowsSent SimCommunicator::do_all_to_all(TensorView send,
                                                      std::span<const int64_t> send_rows,
                                                      TensorView recv,
                                                      std::span<const int64_t> recv_rows,
                                                      const RowExchange& exchange) {
  std::vector<SimRows>& parts = group_.exchanged[parity_];
  const size_t parity = std::exchange(parity_, 1 - parity_);
  parts[static_cast<size_t>(rank())] = {
      .kind = exchange.kind,
      .row_bytes = row_bytes(send),
      .rows = {send_rows.begin(), send_rows.end()},
      .node_rows = {exchange.node_rows.begin(), exchange.node_rows.end()},
      .data = host_copy(send)};
  if (size() > 1) network_.exchange(group_, clock_, parity);
  auto* into = static_cast<std::byte*>(recv.data());
  for (int r = 0; r < size(); ++r) {
    const SimRows& part = parts[static_cast<size_t>(r)];
    const auto mine = part.rows.begin() + rank();
    const int64_t n_bytes = recv_rows[static_cast<size_t>(r)] * part.row_bytes;
    CHECK(*mine == recv_rows[static_cast<size_t>(r)]);
    copy_part(part.data,
              std::accumulate(part.rows.begin(), mine, int64_t{0}) * part.row_bytes,
              into,
              n_bytes);
    into += n_bytes;
  }
  if (size() == 1) return {};
  return {group_.exchange_algorithm, group_.exchange_sent[static_cast<size_t>(rank())]};
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
