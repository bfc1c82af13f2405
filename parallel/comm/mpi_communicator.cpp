#include "parallel/comm/mpi_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "kernels/base/errors.hpp"
#include "parallel/comm/missing_ranks.hpp"
#include "parallel/comm/ordered_sum.hpp"

namespace testbed {
namespace {

constexpr int collective_tag = 1;
constexpr int message_tag = 2;

MPI_Comm create(const std::vector<int>& world_ranks) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &group),
            "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, group, collective_tag, &comm),
            "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return comm;
}

}  // namespace

class MpiCommunicator::MpiWork final : public Pending::Work {
 public:
  MpiWork(MpiCommunicator& communicator, std::string_view op)
      : communicator_(communicator), op_(op), requests_(communicator.options_.largest_message) {}
  MpiRequests& requests() { return requests_; }
  void wait() override { communicator_.wait(requests_, op_); }

 private:
  MpiCommunicator& communicator_;
  std::string_view op_;
  MpiRequests requests_;
};

MpiCommunicator::MpiCommunicator(GroupInfo info, Options options, const Clock& clock)
    : Communicator(std::move(info), clock),
      options_(std::move(options)),
      comm_(create(group().world_ranks)),
      parts_(static_cast<size_t>(size())),
      contributions_{MpiRequests(options_.largest_message), MpiRequests(options_.largest_message)},
      results_{MpiRequests(options_.largest_message), MpiRequests(options_.largest_message)} {
  CHECK(options_.hosts.size() == parts_.size());
}

MpiCommunicator::~MpiCommunicator() {
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

void MpiCommunicator::wait(MpiRequests& requests, std::string_view op) {
  try {
    requests.wait(options_.waiting, [&](const std::vector<int>& peers) {
      return missing_ranks(group(),
                           options_.hosts,
                           op,
                           peers,
                           options_.waiting.deadline_s,
                           options_.waiting.whereabouts);
    });
  } catch (...) {
    // The tensor of a collective may now be destroyed.
    requests.abandon();
    for (auto* steps : {&contributions_, &results_}) {
      for (MpiRequests& step : *steps) step.abandon();
    }
    throw;
  }
}

std::byte* MpiCommunicator::scratch(int64_t n_bytes) {
  if (static_cast<int64_t>(scratch_.size()) < n_bytes) {
    scratch_.resize(static_cast<size_t>(n_bytes));
  }
  return scratch_.data();
}

void MpiCommunicator::progress() {
  int found = 0;  // not wanted: any call into MPI moves all of its messages
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, MPI_STATUS_IGNORE),
            "MPI_Iprobe");
  if (options_.waiting.progress) options_.waiting.progress();
}

// Nothing is measured: the sizes are those found best when this was written.
std::string MpiCommunicator::tune() {
  return fmt::format("by MPI messages: one-shot to {} KiB, two-shot above",
                     options_.sizes.one_shot_limit(size()) / 1024);
}

CommAlgorithm MpiCommunicator::all_reduce_algorithm(int64_t n_bytes) const {
  return n_bytes <= options_.sizes.one_shot_limit(size()) ? CommAlgorithm::one_shot
                                                          : CommAlgorithm::two_shot;
}

void MpiCommunicator::do_all_reduce(TensorView x, CommAlgorithm algorithm) {
  if (algorithm == CommAlgorithm::one_shot) one_shot(x);
  if (algorithm == CommAlgorithm::two_shot) two_shot(x);
}

void MpiCommunicator::one_shot(TensorView x) {
  const int64_t n_bytes = x.n_bytes();
  std::byte* received = scratch(n_bytes * size());
  MpiRequests& requests = contributions_.front();
  for (int r = 0; r < size(); ++r) {
    parts_[static_cast<size_t>(r)] = r == rank() ? x.data() : received + r * n_bytes;
    if (r != rank()) requests.recv(received + r * n_bytes, n_bytes, r, collective_tag, comm_);
  }
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) requests.send(x.data(), n_bytes, r, collective_tag, comm_);
  }
  wait(requests, "all_reduce");
  sum_in_order(parts_, x.data(), x.n_elements(), x.dtype());
}

void MpiCommunicator::two_shot(TensorView x) {
  const ReducePieces shot = ReducePieces::of(x, size(), options_.sizes.piece_bytes);
  const int64_t n_steps = shot.n_steps();
  post_contributions(shot, 0);
  for (int64_t step = 0; step < n_steps; ++step) {
    if (step + 1 < n_steps) post_contributions(shot, step + 1);
    // Also ends my sends of this step, whose places in x the results may then take.
    wait(contributions_[static_cast<size_t>(step % 2)], "all_reduce");
    sum_contributions(shot, step, shot.at(shot.piece(rank(), step)));
    post_results(shot, step);
    if (step > 0) wait(results_[static_cast<size_t>((step - 1) % 2)], "all_reduce");
  }
  wait(results_[static_cast<size_t>((n_steps - 1) % 2)], "all_reduce");
}

// Everyone's share of my piece comes to me, and mine of theirs goes to them.
void MpiCommunicator::post_contributions(const ReducePieces& shot, int64_t step) {
  MpiRequests& requests = contributions_[static_cast<size_t>(step % 2)];
  const int64_t slot_bytes = shot.piece_elements * shot.element_bytes();
  std::byte* received =
      scratch(int64_t{2} * size() * slot_bytes) + (step % 2) * size() * slot_bytes;
  const int64_t mine_bytes = shot.n_bytes(shot.piece(rank(), step));
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    requests.recv(received + r * slot_bytes, mine_bytes, r, collective_tag, comm_);
    const IndexRange theirs = shot.piece(r, step);
    requests.send(shot.at(theirs), shot.n_bytes(theirs), r, collective_tag, comm_);
  }
}

void MpiCommunicator::sum_contributions(const ReducePieces& shot, int64_t step, std::byte* sum) {
  const int64_t slot_bytes = shot.piece_elements * shot.element_bytes();
  const std::byte* received = scratch_.data() + (step % 2) * size() * slot_bytes;
  const IndexRange mine = shot.piece(rank(), step);
  for (int r = 0; r < size(); ++r) {
    parts_[static_cast<size_t>(r)] = r == rank() ? shot.at(mine) : received + r * slot_bytes;
  }
  sum_in_order(parts_, sum, mine.size(), shot.x.dtype());
}

// My sum goes to everyone.
void MpiCommunicator::post_results(const ReducePieces& shot, int64_t step) {
  MpiRequests& requests = results_[static_cast<size_t>(step % 2)];
  const IndexRange mine = shot.piece(rank(), step);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const IndexRange theirs = shot.piece(r, step);
    requests.recv(shot.at(theirs), shot.n_bytes(theirs), r, collective_tag, comm_);
    requests.send(shot.at(mine), shot.n_bytes(mine), r, collective_tag, comm_);
  }
}

// The first half of a two-shot all-reduce: the same sums in the same pieces.
void MpiCommunicator::do_reduce_scatter(TensorView x, TensorView out) {
  if (size() == 1) {
    if (out.data() != x.data()) std::memcpy(out.data(), x.data(), static_cast<size_t>(x.n_bytes()));
    return;
  }
  const ReducePieces shot = ReducePieces::of(x, size(), options_.sizes.piece_bytes);
  auto* sum = static_cast<std::byte*>(out.data());
  const int64_t n_steps = shot.n_steps();
  post_contributions(shot, 0);
  for (int64_t step = 0; step < n_steps; ++step) {
    if (step + 1 < n_steps) post_contributions(shot, step + 1);
    wait(contributions_[static_cast<size_t>(step % 2)], "reduce_scatter");
    sum_contributions(shot, step, sum);
    sum += shot.n_bytes(shot.piece(rank(), step));
  }
}

Communicator::RowsSent MpiCommunicator::do_all_to_all(TensorView send,
                                                      std::span<const int64_t> send_rows,
                                                      TensorView recv,
                                                      std::span<const int64_t> recv_rows,
                                                      const RowExchange& /*exchange*/) {
  MpiRequests& requests = contributions_.front();
  const std::byte* from = static_cast<const std::byte*>(send.data());
  auto* into = static_cast<std::byte*>(recv.data());
  for (int r = 0; r < size(); ++r) {
    const int64_t n_sent = send_rows[static_cast<size_t>(r)] * row_bytes(send);
    const int64_t n_received = recv_rows[static_cast<size_t>(r)] * row_bytes(recv);
    if (r != rank()) {
      requests.recv(into, n_received, r, collective_tag, comm_);
      requests.send(from, n_sent, r, collective_tag, comm_);
    } else if (n_sent > 0) {
      std::memcpy(into, from, static_cast<size_t>(n_sent));
    }
    from += n_sent;
    into += n_received;
  }
  wait(requests, "all_to_all");
  const int64_t own_bytes = send_rows[static_cast<size_t>(rank())] * row_bytes(send);
  return {size() > 1 ? CommAlgorithm::direct : CommAlgorithm::none, send.n_bytes() - own_bytes};
}

void MpiCommunicator::do_all_gather(TensorView local, TensorView out) {
  const int64_t n_bytes = local.n_bytes();
  auto* data = static_cast<std::byte*>(out.data());
  MpiRequests& requests = contributions_.front();
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    requests.recv(data + r * n_bytes, n_bytes, r, collective_tag, comm_);
    requests.send(local.data(), n_bytes, r, collective_tag, comm_);
  }
  std::byte* mine = data + rank() * n_bytes;
  if (mine != local.data()) std::memcpy(mine, local.data(), static_cast<size_t>(n_bytes));
  wait(requests, "all_gather");
}

void MpiCommunicator::do_broadcast(TensorView x, int root) {
  MpiRequests& requests = contributions_.front();
  if (rank() == root) {
    for (int r = 0; r < size(); ++r) {
      if (r != root) requests.send(x.data(), x.n_bytes(), r, collective_tag, comm_);
    }
  } else {
    requests.recv(x.data(), x.n_bytes(), root, collective_tag, comm_);
  }
  wait(requests, "broadcast");
}

void MpiCommunicator::do_barrier() {
  std::byte* bytes = scratch(size() + 1);
  MpiRequests& requests = contributions_.front();
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    requests.recv(bytes + r, 1, r, collective_tag, comm_);
    requests.send(bytes + size(), 1, r, collective_tag, comm_);
  }
  wait(requests, "barrier");
}

std::unique_ptr<Pending::Work> MpiCommunicator::do_send(TensorView x, int target) {
  auto work = std::make_unique<MpiWork>(*this, "send");
  work->requests().send(x.data(), x.n_bytes(), target, message_tag, comm_);
  return work;
}

std::unique_ptr<Pending::Work> MpiCommunicator::do_recv(TensorView x, int source) {
  auto work = std::make_unique<MpiWork>(*this, "recv");
  work->requests().recv(x.data(), x.n_bytes(), source, message_tag, comm_);
  return work;
}

}  // namespace testbed
