#include "parallel/comm/mpi_wait.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/base/clock.hpp"
#include "kernels/base/errors.hpp"

namespace testbed {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(std::string(call) + ": " + std::string(text, static_cast<size_t>(length)));
}

WaitRounds::WaitRounds(const MpiWaiting& waiting) : waiting_(waiting), begin_ns_(now_ns()) {}

bool WaitRounds::next() {
  if (waiting_.sleep_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(waiting_.sleep_us));
  } else if (!waiting_.may_spin) {
    sched_yield();
  }
  constexpr int64_t rounds_between_progress = 16;
  constexpr int64_t rounds_between_clock_reads = 64;
  ++round_;
  if (round_ % rounds_between_progress == 0 && waiting_.progress) waiting_.progress();
  if (round_ % rounds_between_clock_reads != 0) return false;
  const double seconds = static_cast<double>(now_ns() - begin_ns_) * 1e-9;
  if (waiting_.look) waiting_.look(seconds);
  return seconds > waiting_.deadline_s;
}

void MpiRequests::send(const void* data, int64_t n_bytes, int peer, int tag, MPI_Comm comm) {
  for (int64_t at = 0; at < n_bytes; at += largest_piece_) {
    const auto piece = static_cast<int>(std::min(largest_piece_, n_bytes - at));
    check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + at,
                        piece,
                        MPI_BYTE,
                        peer,
                        tag,
                        comm,
                        &requests_.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Isend");
    peers_.push_back(peer);
  }
}

void MpiRequests::recv(void* data, int64_t n_bytes, int peer, int tag, MPI_Comm comm) {
  for (int64_t at = 0; at < n_bytes; at += largest_piece_) {
    const auto piece = static_cast<int>(std::min(largest_piece_, n_bytes - at));
    check_mpi(MPI_Irecv(static_cast<std::byte*>(data) + at,
                        piece,
                        MPI_BYTE,
                        peer,
                        tag,
                        comm,
                        &requests_.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Irecv");
    peers_.push_back(peer);
  }
}

bool MpiRequests::test() {
  int done = 0;
  check_mpi(
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
      "MPI_Testall");
  return done != 0;
}

void MpiRequests::wait(const MpiWaiting& waiting,
                       const std::function<std::string(const std::vector<int>&)>& what) {
  WaitRounds rounds(waiting);
  while (!test()) {
    if (!rounds.next()) continue;
    const std::vector<int> missing = missing_peers();
    // None is if this process was itself stopped meanwhile; the next test sees it.
    if (!missing.empty()) throw CommError(what(missing));
  }
  requests_.clear();
  peers_.clear();
}

// Open MPI cannot cancel a send, nor a receive whose message has begun to arrive: those are only
// let go of.
void MpiRequests::abandon() {
  for (MPI_Request& request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  requests_.clear();
  peers_.clear();
}

std::vector<int> MpiRequests::missing_peers() {
  std::vector<int> missing;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    int done = 0;
    if (MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0) continue;
    missing.push_back(peers_[i]);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

}  // namespace testbed
