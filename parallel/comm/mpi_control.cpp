#include "parallel/comm/mpi_control.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {
constexpr int tag = 3;
}

MpiControl::MpiControl(std::vector<std::string> hosts, const MpiWaiting& waiting)
    : hosts_(std::move(hosts)), waiting_(waiting) {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
}

MpiControl::~MpiControl() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    for (Posted& posted : posted_) wait(posted.requests, "post");
    MPI_Comm_free(&comm_);
  } catch (const CommError& error) {
    // A destructor cannot hand it on, and MPI_Finalize would wait for ever.
    fmt::print(stderr, "testbed: rank {} ({}): {}\n", rank_, host(), error.what());
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(error.code()));
  }
}

void MpiControl::wait(MpiRequests& requests, std::string_view op) {
  requests.wait(waiting_, [&](const std::vector<int>& peers) {
    std::vector<std::string> names;
    names.reserve(peers.size());
    for (const int peer : peers) {
      names.push_back(fmt::format("{} ({})", peer, hosts_[static_cast<size_t>(peer)]));
    }
    return fmt::format("control {}: ranks {} did not arrive within {:g} s{}",
                       op,
                       fmt::join(names, ", "),
                       waiting_.deadline_s,
                       waiting_.whereabouts ? waiting_.whereabouts(peers) : "");
  });
}

void MpiControl::forget_sent() {
  posted_.remove_if([](Posted& posted) { return posted.requests.test(); });
}

void MpiControl::post(Bytes message, int target) {
  forget_sent();
  Posted& posted = posted_.emplace_back();
  posted.message = std::move(message);
  posted.length = posted.message.size();
  posted.requests.send(&posted.length, sizeof posted.length, target, tag, comm_);
  posted.requests.send(
      posted.message.data(), static_cast<int64_t>(posted.message.size()), target, tag, comm_);
}

// One message from each source, in the order of sources, all under one deadline each for lengths
// and contents.
std::vector<Bytes> MpiControl::receive_from(const std::vector<int>& sources, std::string_view op) {
  std::vector<uint64_t> lengths(sources.size());
  std::vector<Bytes> messages(sources.size());
  MpiRequests requests;
  for (size_t i = 0; i < sources.size(); ++i) {
    requests.recv(&lengths[i], sizeof lengths[i], sources[i], tag, comm_);
  }
  wait(requests, op);
  for (size_t i = 0; i < sources.size(); ++i) {
    messages[i].resize(static_cast<size_t>(lengths[i]));
    requests.recv(
        messages[i].data(), static_cast<int64_t>(messages[i].size()), sources[i], tag, comm_);
  }
  wait(requests, op);
  forget_sent();
  return messages;
}

Bytes MpiControl::receive(int source) {
  return std::move(receive_from({source}, "receive").front());
}

Bytes MpiControl::broadcast(Bytes from_root, int root) {
  if (rank_ != root) return std::move(receive_from({root}, "broadcast").front());
  for (int r = 0; r < size(); ++r) {
    if (r != root) post(from_root, r);
  }
  return from_root;
}

std::vector<int> MpiControl::others() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) ranks.push_back(r);
  }
  return ranks;
}

std::vector<Bytes> MpiControl::gather(Bytes mine, int root) {
  if (rank_ != root) {
    post(std::move(mine), root);
    return {};
  }
  std::vector<Bytes> all = receive_from(others(), "gather");
  all.insert(all.begin() + rank_, std::move(mine));
  return all;
}

std::vector<Bytes> MpiControl::exchange(Bytes mine, std::string_view op) {
  for (const int r : others()) post(mine, r);
  std::vector<Bytes> all = receive_from(others(), op);
  all.insert(all.begin() + rank_, std::move(mine));
  return all;
}

std::vector<Bytes> MpiControl::all_gather(Bytes mine) {
  return exchange(std::move(mine), "all_gather");
}

void MpiControl::barrier() { exchange({}, "barrier"); }

}  // namespace testbed
