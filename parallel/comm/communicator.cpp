#include "parallel/comm/communicator.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <numeric>
#include <utility>

#include "kernels/base/clock.hpp"
#include "parallel/comm/wire_bytes.hpp"

namespace testbed {
namespace {

// Otherwise an operation would pass over a missing tensor in silence.
bool holds_data(TensorView x) { return x.data() != nullptr || x.n_elements() == 0; }

// What a row shows for as long as its rank is in the operation; of one that throws for ever.
OpRow::Operation shown(const CommRecord& record, const GroupInfo& group) {
  return {.op = static_cast<uint8_t>(record.op),
          .axis = static_cast<uint8_t>(record.axis),
          .host = record.host,
          .peer = record.peer < 0 ? -1 : group.world_ranks[static_cast<size_t>(record.peer)],
          .group_id = static_cast<int32_t>(record.group_id),
          .group_size = record.group_size,
          .sequence = record.sequence};
}

}  // namespace

int64_t row_bytes(TensorView x) {
  int64_t elements = 1;
  for (int i = 1; i < x.shape().rank(); ++i) elements *= x.shape()[i];
  return dtype_bytes(x.dtype(), elements);
}

int GroupInfo::n_nodes() const {
  return node_of.empty() ? 1 : 1 + *std::max_element(node_of.begin(), node_of.end());
}

std::optional<CommAlgorithm> algorithm_by_name(std::string_view name) {
  const auto* const found = std::find(std::begin(algorithm_names), std::end(algorithm_names), name);
  if (found == std::end(algorithm_names)) return std::nullopt;
  return static_cast<CommAlgorithm>(found - std::begin(algorithm_names));
}

Pending::Pending(std::unique_ptr<Work> work,
                 CommSink* sink,
                 const Shown& shown,
                 const Clock& clock,
                 const CommRecord& record)
    : work_(std::move(work)), sink_(sink), shown_(shown), clock_(&clock), record_(record) {}

Pending& Pending::operator=(Pending&& other) {  // NOLINT(performance-noexcept-move-constructor)
  if (this != &other) {
    wait();
    work_ = std::move(other.work_);
    sink_ = other.sink_;
    shown_ = other.shown_;
    clock_ = other.clock_;
    record_ = other.record_;
  }
  return *this;
}

Pending::~Pending() noexcept(false) {
  // While an error unwinds, the peer may never come: the job is about to end, and nobody reads the
  // buffer.
  if (std::uncaught_exceptions() == 0) wait();
}

void Pending::wait() {
  if (!work_) return;
  const std::unique_ptr<Work> work = std::move(work_);
  if (sink_ != nullptr) record_.wait_begin_ns = clock_->now_ns();
  if (shown_.row != nullptr) shown_.row->enter(shown_.operation);
  work->wait();
  if (shown_.row != nullptr) shown_.row->leave();
  if (sink_ == nullptr) return;
  record_.wait_end_ns = clock_->now_ns();
  record_.arrived_ns = work->arrived_ns();
  sink_->on_comm(record_);
}

Communicator::Communicator(GroupInfo group, const Clock& clock)
    : group_(std::move(group)),
      clock_(clock),
      next_send_(static_cast<size_t>(group_.size), 0),
      next_recv_(static_cast<size_t>(group_.size), 0) {
  CHECK(group_.world_ranks.size() == static_cast<size_t>(group_.size));
}

int64_t Communicator::wire_bytes_of(CommOp op,
                                    CommAlgorithm algorithm,
                                    int64_t n_bytes,
                                    int64_t element_bytes) const {
  return wire_bytes(op, algorithm, n_bytes, element_bytes, rank(), size());
}

CommRecord Communicator::record(CommOp op) const {
  return {.op = op,
          .axis = group_.axis,
          .group_size = group_.size,
          .host = group_.host,
          .group_id = group_.world_ranks.front()};
}

template <typename Do>
void Communicator::stamped(CommRecord& record, Do&& work) {
  if (sink_ == nullptr) {
    work(record);
    return;
  }
  record.post_begin_ns = clock_.now_ns();
  work(record);
  record.post_end_ns = record.wait_begin_ns = record.wait_end_ns = clock_.now_ns();
  sink_->on_comm(record);
}

template <typename Do>
void Communicator::collective(CommRecord record, TensorView result, Do&& work) {
  record.sequence = next_collective_++;
  // Of nothing: every rank knows, and none comes.
  const bool is_empty =
      record.payload_bytes == 0 && record.op != CommOp::barrier && record.op != CommOp::all_to_all;
  if (size() == 1 || is_empty) {
    work(record);
    return;
  }
  for (const auto& hooks : hooks_) hooks->before(record, group_);
  if (row_ != nullptr) row_->enter(shown(record, group_));
  stamped(record, work);
  if (row_ != nullptr) row_->leave();
  for (const auto& hooks : hooks_) hooks->after(record, group_, result);
}

void Communicator::all_reduce(TensorView x) {
  CHECK(x.dtype() == DType::F32 || x.dtype() == DType::BF16);
  CHECK(holds_data(x));
  CommRecord mine = record(CommOp::all_reduce);
  mine.payload_bytes = x.n_bytes();
  if (size() > 1) {
    mine.algorithm = all_reduce_algorithm(x.n_bytes());
    mine.wire_bytes =
        wire_bytes_of(mine.op, mine.algorithm, x.n_bytes(), dtype_bytes(x.dtype(), 1));
  }
  collective(mine, x, [&](CommRecord&) {
    if (x.n_elements() > 0) do_all_reduce(x, mine.algorithm);
  });
}

bool Communicator::all_reduce_add_norm(
    TensorView partial, TensorView residual, TensorView weight, float eps, TensorView out) {
  if (size() == 1 || partial.n_elements() == 0 || !fuses_add_norm(partial)) return false;
  CommRecord mine = record(CommOp::all_reduce);
  mine.payload_bytes = partial.n_bytes();
  mine.algorithm = CommAlgorithm::one_shot_norm;
  mine.wire_bytes =
      wire_bytes_of(mine.op, mine.algorithm, partial.n_bytes(), dtype_bytes(partial.dtype(), 1));
  collective(mine, residual, [&](CommRecord&) {
    do_all_reduce_add_norm(partial, residual, weight, eps, out);
  });
  return true;
}

void Communicator::all_gather(TensorView local, TensorView out) {
  CHECK(out.n_bytes() == size() * local.n_bytes());
  CHECK(holds_data(local) && holds_data(out));
  CommRecord mine = record(CommOp::all_gather);
  mine.payload_bytes = out.n_bytes();
  if (size() > 1) {
    mine.algorithm = all_gather_algorithm(out.n_bytes());
    mine.wire_bytes =
        wire_bytes_of(mine.op, mine.algorithm, out.n_bytes(), dtype_bytes(out.dtype(), 1));
  }
  collective(mine, out, [&](CommRecord&) {
    if (out.n_elements() > 0) do_all_gather(local, out);
  });
}

void Communicator::reduce_scatter(TensorView x, TensorView out) {
  CHECK(x.dtype() == DType::F32 || x.dtype() == DType::BF16);
  CHECK(out.dtype() == x.dtype() && x.n_bytes() == size() * out.n_bytes());
  CHECK(holds_data(x) && holds_data(out));
  CommRecord mine = record(CommOp::reduce_scatter);
  mine.payload_bytes = x.n_bytes();
  if (size() > 1) {
    mine.algorithm = reduce_scatter_algorithm(x.n_bytes());
    mine.wire_bytes =
        wire_bytes_of(mine.op, mine.algorithm, x.n_bytes(), dtype_bytes(x.dtype(), 1));
  }
  collective(mine, out, [&](CommRecord&) {
    if (x.n_elements() > 0) do_reduce_scatter(x, out);
  });
}

void Communicator::all_to_all(TensorView send,
                              std::span<const int64_t> send_rows,
                              TensorView recv,
                              std::span<const int64_t> recv_rows,
                              const RowExchange& exchange) {
  const auto n = static_cast<size_t>(size());
  const auto own = static_cast<size_t>(rank());
  CHECK(send_rows.size() == n && recv_rows.size() == n && send_rows[own] == recv_rows[own]);
  CHECK(std::accumulate(send_rows.begin(), send_rows.end(), int64_t{0}) == send.n_rows());
  CHECK(std::accumulate(recv_rows.begin(), recv_rows.end(), int64_t{0}) == recv.n_rows());
  CHECK(send.dtype() == recv.dtype() && row_bytes(send) == row_bytes(recv));
  CHECK(holds_data(send) && holds_data(recv));
  const std::span<const int64_t> by_node = exchange.node_rows;
  CHECK(by_node.empty() || by_node.size() == static_cast<size_t>(group_.n_nodes()));
  CommRecord mine = record(CommOp::all_to_all);
  mine.payload_bytes = send.n_bytes();
  // A rank without rows takes part: others may send to it.
  collective(mine, recv, [&](CommRecord& told) {
    const RowsSent sent = do_all_to_all(send, send_rows, recv, recv_rows, exchange);
    told.algorithm = sent.algorithm;
    told.wire_bytes = sent.wire_bytes;
  });
}

void Communicator::broadcast(TensorView x, int root) {
  CHECK(root >= 0 && root < size() && holds_data(x));
  CommRecord mine = record(CommOp::broadcast);
  mine.algorithm = size() > 1 ? CommAlgorithm::direct : CommAlgorithm::none;
  mine.payload_bytes = x.n_bytes();
  mine.wire_bytes = rank() == root ? (size() - 1) * x.n_bytes() : 0;
  collective(mine, x, [&](CommRecord&) {
    if (size() > 1 && x.n_elements() > 0) do_broadcast(x, root);
  });
}

void Communicator::barrier() {
  CommRecord mine = record(CommOp::barrier);
  mine.algorithm = size() > 1 ? CommAlgorithm::direct : CommAlgorithm::none;
  collective(mine, {}, [&](CommRecord&) {
    if (size() > 1) do_barrier();
  });
}

Pending Communicator::send(TensorView x, int target) {
  CHECK(target >= 0 && target < size() && holds_data(x));
  CommRecord mine = record(CommOp::send);
  mine.sequence = next_send_[static_cast<size_t>(target)]++;
  mine.wire_bytes = x.n_bytes();
  return message(mine, x, target, [&] { return do_send(x, target); });
}

Pending Communicator::recv(TensorView x, int source) {
  CHECK(source >= 0 && source < size() && holds_data(x));
  CommRecord mine = record(CommOp::recv);
  mine.sequence = next_recv_[static_cast<size_t>(source)]++;
  return message(mine, x, source, [&] { return do_recv(x, source); });
}

template <typename Post>
Pending Communicator::message(CommRecord record, TensorView x, int peer, Post&& post) {
  if (x.n_bytes() == 0) return {};  // both ends know: no message
  record.algorithm = CommAlgorithm::direct;
  record.peer = peer;
  record.payload_bytes = x.n_bytes();
  if (size() == 1) return {post(), nullptr, {}, clock_, record};
  bool passes = true;
  for (const auto& hooks : hooks_) {
    hooks->before(record, group_);
    passes = hooks->lets_pass(record, group_) && passes;
  }
  const Pending::Shown waits{row_, shown(record, group_)};
  if (row_ != nullptr && record.op == CommOp::send) row_->gave(waits.operation);
  if (!passes) return {};
  if (sink_ == nullptr) return {post(), nullptr, waits, clock_, record};
  record.post_begin_ns = clock_.now_ns();
  std::unique_ptr<Pending::Work> work = post();
  record.post_end_ns = clock_.now_ns();
  return {std::move(work), sink_, waits, clock_, record};
}

}  // namespace testbed
