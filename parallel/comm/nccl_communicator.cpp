#include "parallel/comm/nccl_communicator.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace testbed {
namespace {

// `host` is of host tensors.
GroupInfo of_device(GroupInfo group) {
  group.host = false;
  return group;
}

ncclDataType_t nccl_type(DType dtype) {
  CHECK(dtype == DType::F32 || dtype == DType::BF16);
  return dtype == DType::F32 ? ncclFloat32 : ncclBfloat16;
}

}  // namespace

// No padding: equal calls have equal bytes.
struct NcclCommunicator::CallArgs {
  NcclComm* comm;
  const void* from;
  void* into;
  size_t count;  // of `type`
  ncclDataType_t type;
  int32_t peer;
};

class NcclCommunicator::Message final : public Pending::Work {
 public:
  Message(NcclCommunicator& communicator, int slot) : communicator_(communicator), slot_(slot) {}
  void wait() override { communicator_.wait_for(slot_); }

 private:
  NcclCommunicator& communicator_;
  int slot_;
};

NcclCommunicator::NcclCommunicator(Communicator& host,
                                   cuda::Queue& queue,
                                   const Clock& clock,
                                   const std::vector<NcclComm*>& comms)
    : Communicator(of_device(host.group()), clock), host_(host), queue_(queue) {
  CHECK(size() == 1 ? comms.empty() : !comms.empty());
  for (NcclComm* comm : comms) lanes_.emplace_back(*comm);
  if (size() == 1) transport_ = "none";
}

// NCCL waits for the end of graphs that hold its calls.
NcclCommunicator::~NcclCommunicator() {
  if (lanes_.empty()) return;
  queue_.forget_graphs();
  for (Lane& lane : lanes_) lane.comm.of.release(lane.comm);
}

std::vector<uint64_t> NcclCommunicator::handles() const {
  std::vector<uint64_t> all;
  all.reserve(lanes_.size());
  for (const Lane& lane : lanes_) all.push_back(reinterpret_cast<uintptr_t>(lane.comm.handle));
  return all;
}

CommAlgorithm NcclCommunicator::all_reduce_algorithm(int64_t n_bytes) const {
  if (peers_) {
    if (const auto theirs = peers_->algorithm_for(n_bytes)) return *theirs;
  }
  return algorithms_ ? algorithms_(CommOp::all_reduce, n_bytes) : CommAlgorithm::nccl;
}
CommAlgorithm NcclCommunicator::all_gather_algorithm(int64_t n_bytes) const {
  return algorithms_ ? algorithms_(CommOp::all_gather, n_bytes) : CommAlgorithm::nccl;
}
CommAlgorithm NcclCommunicator::reduce_scatter_algorithm(int64_t n_bytes) const {
  return algorithms_ ? algorithms_(CommOp::reduce_scatter, n_bytes) : CommAlgorithm::nccl;
}

// Where NCCL's choice is not known, as for its ring: its trees send the same on average over the
// ranks.
int64_t NcclCommunicator::wire_bytes_of(CommOp op,
                                        CommAlgorithm algorithm,
                                        int64_t n_bytes,
                                        int64_t element_bytes) const {
  if (op == CommOp::all_reduce && PeerAllReduce::has(algorithm)) {
    return peers_->wire_bytes(algorithm, n_bytes, element_bytes);
  }
  const CommAlgorithm counted = algorithm == CommAlgorithm::nccl ? CommAlgorithm::ring : algorithm;
  return Communicator::wire_bytes_of(op, counted, n_bytes, element_bytes);
}

void NcclCommunicator::issue_all_reduce(const CallArgs& a, cudaStream_t on) {
  const ncclResult_t result =
      ncclAllReduce(a.from, a.into, a.count, a.type, ncclSum, a.comm->handle, on);
  a.comm->of.settle(*a.comm, "ncclAllReduce", result);
}
void NcclCommunicator::issue_all_gather(const CallArgs& a, cudaStream_t on) {
  const ncclResult_t result = ncclAllGather(a.from, a.into, a.count, a.type, a.comm->handle, on);
  a.comm->of.settle(*a.comm, "ncclAllGather", result);
}
void NcclCommunicator::issue_reduce_scatter(const CallArgs& a, cudaStream_t on) {
  const ncclResult_t result =
      ncclReduceScatter(a.from, a.into, a.count, a.type, ncclSum, a.comm->handle, on);
  a.comm->of.settle(*a.comm, "ncclReduceScatter", result);
}
void NcclCommunicator::issue_group_start(const CallArgs& a, cudaStream_t /*on*/) {
  a.comm->of.start_group(*a.comm);
}
void NcclCommunicator::issue_group_end(const CallArgs& a, cudaStream_t /*on*/) {
  a.comm->of.end_group(*a.comm);
}
void NcclCommunicator::issue_send(const CallArgs& a, cudaStream_t on) {
  const ncclResult_t result = ncclSend(a.from, a.count, a.type, a.peer, a.comm->handle, on);
  a.comm->of.accept(*a.comm, "ncclSend", result);
}
void NcclCommunicator::issue_recv(const CallArgs& a, cudaStream_t on) {
  const ncclResult_t result = ncclRecv(a.into, a.count, a.type, a.peer, a.comm->handle, on);
  a.comm->of.accept(*a.comm, "ncclRecv", result);
}
void NcclCommunicator::issue_copy(const CallArgs& a, cudaStream_t on) {
  cuda::check(cudaMemcpyAsync(a.into, a.from, a.count, cudaMemcpyDeviceToDevice, on),
              "cudaMemcpyAsync");
}

void NcclCommunicator::call(Lane& lane, const char* name, Issue issue, const CallArgs& args) {
  lane.comm.of.note(lane.comm, name);
  queue_.call(issue, args, lane.stream.get());
}

template <typename Calls>
void NcclCommunicator::collective(Calls&& calls) {
  // It would wait behind messages whose receivers may come to the collective first.
  CHECK(std::find(in_flight_.begin(), in_flight_.end(), true) == in_flight_.end());
  Lane& lane = lanes_.front();
  queue_.order(queue_.stream(), lane.ready.get(), lane.stream.get());
  calls(lane);
  queue_.order(lane.stream.get(), lane.done.get(), queue_.stream());
}

void NcclCommunicator::do_all_reduce(TensorView x, CommAlgorithm algorithm) {
  if (size() == 1) return;
  if (PeerAllReduce::has(algorithm)) return peers_->all_reduce(x, algorithm);
  collective([&](Lane& lane) {
    call(lane,
         "ncclAllReduce",
         &issue_all_reduce,
         {.comm = &lane.comm,
          .from = x.data(),
          .into = x.data(),
          .count = static_cast<size_t>(x.n_elements()),
          .type = nccl_type(x.dtype()),
          .peer = -1});
  });
}

void NcclCommunicator::do_all_gather(TensorView local, TensorView out) {
  if (size() == 1) return copy_bytes(local.data(), out.data(), local.n_bytes(), queue_.stream());
  collective([&](Lane& lane) {
    call(lane,
         "ncclAllGather",
         &issue_all_gather,
         {.comm = &lane.comm,
          .from = local.data(),
          .into = out.data(),
          .count = static_cast<size_t>(local.n_bytes()),
          .type = ncclUint8,
          .peer = -1});
  });
}

void NcclCommunicator::do_reduce_scatter(TensorView x, TensorView out) {
  if (size() == 1) return copy_bytes(x.data(), out.data(), x.n_bytes(), queue_.stream());
  collective([&](Lane& lane) {
    call(lane,
         "ncclReduceScatter",
         &issue_reduce_scatter,
         {.comm = &lane.comm,
          .from = x.data(),
          .into = out.data(),
          .count = static_cast<size_t>(out.n_elements()),
          .type = nccl_type(x.dtype()),
          .peer = -1});
  });
}

void NcclCommunicator::begin_exchange(Lane& lane) {
  call(lane, "ncclGroupStart", &issue_group_start, {.comm = &lane.comm});
}
void NcclCommunicator::end_exchange(Lane& lane) {
  call(lane, "ncclGroupEnd", &issue_group_end, {.comm = &lane.comm});
}

void NcclCommunicator::send_bytes(Lane& lane, const void* from, int64_t n_bytes, int target) {
  call(lane,
       "ncclSend",
       &issue_send,
       {.comm = &lane.comm,
        .from = from,
        .into = nullptr,
        .count = static_cast<size_t>(n_bytes),
        .type = ncclUint8,
        .peer = target});
}
void NcclCommunicator::receive_bytes(Lane& lane, void* into, int64_t n_bytes, int source) {
  call(lane,
       "ncclRecv",
       &issue_recv,
       {.comm = &lane.comm,
        .from = nullptr,
        .into = into,
        .count = static_cast<size_t>(n_bytes),
        .type = ncclUint8,
        .peer = source});
}
void NcclCommunicator::copy_bytes(const void* from, void* into, int64_t n_bytes, cudaStream_t on) {
  if (n_bytes == 0 || from == into) return;
  queue_.call(&issue_copy,
              CallArgs{.comm = nullptr,
                       .from = from,
                       .into = into,
                       .count = static_cast<size_t>(n_bytes),
                       .type = ncclUint8,
                       .peer = -1},
              on);
}

// Direct: one message per pair that has rows, all at the same time.
Communicator::RowsSent NcclCommunicator::do_all_to_all(TensorView send,
                                                       std::span<const int64_t> send_rows,
                                                       TensorView recv,
                                                       std::span<const int64_t> recv_rows,
                                                       const RowExchange& /*exchange*/) {
  if (size() == 1) {
    copy_bytes(send.data(), recv.data(), send.n_bytes(), queue_.stream());
    return {};
  }
  const int64_t own_bytes = send_rows[static_cast<size_t>(rank())] * row_bytes(send);
  const RowsSent sent{CommAlgorithm::direct, send.n_bytes() - own_bytes};
  if (send.n_rows() == 0 && recv.n_rows() == 0) return sent;
  collective([&](Lane& lane) {
    const auto* from = static_cast<const std::byte*>(send.data());
    auto* into = static_cast<std::byte*>(recv.data());
    begin_exchange(lane);
    for (int r = 0; r < size(); ++r) {
      const int64_t n_sent = send_rows[static_cast<size_t>(r)] * row_bytes(send);
      const int64_t n_received = recv_rows[static_cast<size_t>(r)] * row_bytes(recv);
      if (r == rank()) {
        copy_bytes(from, into, n_sent, lane.stream.get());
      } else {
        if (n_sent > 0) send_bytes(lane, from, n_sent, r);
        if (n_received > 0) receive_bytes(lane, into, n_received, r);
      }
      from += n_sent;
      into += n_received;
    }
    end_exchange(lane);
  });
  return sent;
}

// Direct, as its record says: NCCL's own broadcast is a chain.
void NcclCommunicator::do_broadcast(TensorView x, int root) {
  collective([&](Lane& lane) {
    begin_exchange(lane);
    if (rank() != root) receive_bytes(lane, x.data(), x.n_bytes(), root);
    for (int r = 0; rank() == root && r < size(); ++r) {
      if (r != root) send_bytes(lane, x.data(), x.n_bytes(), r);
    }
    end_exchange(lane);
  });
}

// Of the hosts, each of which has seen its device finish.
void NcclCommunicator::do_barrier() {
  queue_.synchronize();
  host_.barrier();
}

int NcclCommunicator::take_slot() {
  const auto free = std::find(in_flight_.begin(), in_flight_.end(), false);
  const auto slot = static_cast<int>(free - in_flight_.begin());
  if (free == in_flight_.end()) {
    events_.emplace_back();
    in_flight_.push_back(false);
  }
  in_flight_[static_cast<size_t>(slot)] = true;
  return slot;
}

template <typename Post>
std::unique_ptr<Pending::Work> NcclCommunicator::message(int source, Post&& post) {
  CHECK(static_cast<int>(lanes_.size()) == nccl_message_lanes(size()));
  Lane& lane = lanes_[static_cast<size_t>(nccl_message_lane(size(), source))];
  queue_.order(queue_.stream(), lane.ready.get(), lane.stream.get());
  begin_exchange(lane);
  post(lane);
  end_exchange(lane);
  const int slot = take_slot();
  queue_.record(events_[static_cast<size_t>(slot)].get(), lane.stream.get());
  return std::make_unique<Message>(*this, slot);
}

std::unique_ptr<Pending::Work> NcclCommunicator::do_send(TensorView x, int target) {
  CHECK(target != rank());
  return message(rank(), [&](Lane& lane) { send_bytes(lane, x.data(), x.n_bytes(), target); });
}

std::unique_ptr<Pending::Work> NcclCommunicator::do_recv(TensorView x, int source) {
  CHECK(source != rank());
  return message(source, [&](Lane& lane) { receive_bytes(lane, x.data(), x.n_bytes(), source); });
}

// The host goes on: work on the compute stream after this finds the message there.
void NcclCommunicator::wait_for(int slot) {
  queue_.hold(queue_.stream(), events_[static_cast<size_t>(slot)].get());
  in_flight_[static_cast<size_t>(slot)] = false;
}

}  // namespace testbed
