#include "parallel/comm/shm_hierarchy.hpp"

#include <algorithm>

#include "parallel/comm/wire_bytes.hpp"

namespace testbed {
namespace {

void widen(TensorView from, float* to) {
  for (int64_t i = 0; i < from.n_elements(); ++i) {
    to[i] = from.dtype() == DType::F32 ? from.as<float>()[i] : to_f32(from.as<bf16>()[i]);
  }
}

void round_into(const float* from, TensorView to) {
  for (int64_t i = 0; i < to.n_elements(); ++i) {
    if (to.dtype() == DType::F32) {
      to.as<float>()[i] = from[i];
    } else {
      to.as<bf16>()[i] = to_bf16(from[i]);
    }
  }
}

}  // namespace

// One of this group's messages is one of the host's group.
class ShmHierarchy::Message final : public Pending::Work {
 public:
  explicit Message(Pending pending) : pending_(std::move(pending)) {}
  ~Message() noexcept override = default;  // waited for, or an error unwinds: does not wait
  void wait() override { pending_.wait(); }

 private:
  Pending pending_;
};

std::vector<std::vector<int>> ShmHierarchy::ranks_by_host(const GroupInfo& group) {
  std::vector<std::vector<int>> by_host(static_cast<size_t>(group.n_nodes()));
  for (int r = 0; r < group.size; ++r) by_host[static_cast<size_t>(group.node(r))].push_back(r);
  return by_host;
}

ShmHierarchy::ShmHierarchy(Parts parts, const GroupInfo& info)
    : Communicator(info), parts_(std::move(parts)), local_rank_(static_cast<size_t>(info.size)) {
  for (const std::vector<int>& ranks : ranks_by_host(info)) {
    for (size_t l = 0; l < ranks.size(); ++l) {
      local_rank_[static_cast<size_t>(ranks[l])] = static_cast<int>(l);
    }
    if (info.node(ranks.front()) == info.node(info.rank)) locals_ = ranks;
  }
}

void ShmHierarchy::progress() { parts_.messages->progress(); }

std::string ShmHierarchy::tune() {
  return "by shared memory within hosts and MPI messages across them";
}

int64_t ShmHierarchy::wire_bytes_of(CommOp op,
                                    CommAlgorithm algorithm,
                                    int64_t n_bytes,
                                    int64_t element_bytes) const {
  if (algorithm != CommAlgorithm::hierarchical) {
    return Communicator::wire_bytes_of(op, algorithm, n_bytes, element_bytes);
  }
  const int64_t n_elements = n_bytes / element_bytes;
  const int local = local_rank_[static_cast<size_t>(rank())];
  const auto n_local = static_cast<int64_t>(locals_.size());
  const bool owns = local < parts_.n_parts;
  const int64_t mine = owns ? split_range(n_elements, parts_.n_parts, local).size() : 0;
  // Alone on its host a rank owns all.
  const int64_t within = n_local == 1 ? 0 : (n_elements - mine + (n_local - 1) * mine);
  if (!owns || mine == 0) return within * element_bytes;
  const int n_hosts = group().n_nodes();
  const int64_t across_bytes = mine * dtype_bytes(DType::F32, 1);
  const CommAlgorithm across = across_bytes <= parts_.across_sizes.one_shot_limit(n_hosts)
                                   ? CommAlgorithm::one_shot
                                   : CommAlgorithm::two_shot;
  return within * element_bytes + wire_bytes(CommOp::all_reduce,
                                             across,
                                             across_bytes,
                                             dtype_bytes(DType::F32, 1),
                                             group().node(rank()),
                                             n_hosts);
}

void ShmHierarchy::do_all_reduce(TensorView x, CommAlgorithm /*algorithm*/) {
  const int local = local_rank_[static_cast<size_t>(rank())];
  const bool owns = local < parts_.n_parts;
  const IndexRange part =
      owns ? split_range(x.n_elements(), parts_.n_parts, local) : IndexRange{0, 0};
  sums_.resize(std::max(sums_.size(), static_cast<size_t>(part.size())));
  const TensorView flat = x.reshaped({x.n_elements()});
  const TensorView mine = flat.rows(part.begin, part.size());
  if (parts_.local != nullptr) {
    parts_.local->reduce_parts(flat, parts_.n_parts, sums_.data());
  } else {
    widen(mine, sums_.data());
  }
  if (part.size() > 0) {
    parts_.across->all_reduce({sums_.data(), DType::F32, {part.size()}});
    round_into(sums_.data(), mine);
  }
  if (parts_.local != nullptr) parts_.local->gather_parts(flat, parts_.n_parts);
}

void ShmHierarchy::do_all_gather(TensorView local, TensorView out) {
  parts_.messages->all_gather(local, out);
}
void ShmHierarchy::do_reduce_scatter(TensorView x, TensorView out) {
  parts_.messages->reduce_scatter(x, out);
}
void ShmHierarchy::do_broadcast(TensorView x, int root) { parts_.messages->broadcast(x, root); }
void ShmHierarchy::do_barrier() { parts_.messages->barrier(); }

Communicator::RowsSent ShmHierarchy::do_all_to_all(TensorView send,
                                                   std::span<const int64_t> send_rows,
                                                   TensorView recv,
                                                   std::span<const int64_t> recv_rows,
                                                   const RowExchange& exchange) {
  parts_.messages->all_to_all(send, send_rows, recv, recv_rows, exchange);
  const int64_t own_rows = send_rows[static_cast<size_t>(rank())];
  return {CommAlgorithm::direct, send.n_bytes() - own_rows * row_bytes(send)};
}

std::unique_ptr<Pending::Work> ShmHierarchy::do_send(TensorView x, int target) {
  const bool local = parts_.local != nullptr && is_local(target);
  return std::make_unique<Message>(
      local ? parts_.local->send(x, local_rank_[static_cast<size_t>(target)])
            : parts_.messages->send(x, target));
}

std::unique_ptr<Pending::Work> ShmHierarchy::do_recv(TensorView x, int source) {
  const bool local = parts_.local != nullptr && is_local(source);
  return std::make_unique<Message>(
      local ? parts_.local->recv(x, local_rank_[static_cast<size_t>(source)])
            : parts_.messages->recv(x, source));
}

}  // namespace testbed
