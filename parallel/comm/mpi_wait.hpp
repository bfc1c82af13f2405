// Waiting for MPI requests: under a deadline, spinning only where the host's ranks fit its cores.
// And sends and receives of any length, in pieces that MPI's int counts can express.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace testbed {

struct MpiWaiting {
  double deadline_s = 120.0;
  bool may_spin = false;  // else the core is given away at once
  int64_t sleep_us = 0;   // between looks, for long waits in which only one rank works
  // Called now and then, with the seconds waited so far; may be empty. What else may fail meanwhile
  // (a device) is noticed here: it may throw.
  std::function<void(double)> look = {};
  // Called more often: moves on what this process has on its way by other means than the wait's.
  std::function<void()> progress = {};
  // On the deadline, where these world ranks were last seen, as the end of a sentence
  // (OpBoard::whereabouts); may be empty.
  std::function<std::string(const std::vector<int>&)> whereabouts = {};
};

// A wait's rounds: what is done between two looks at what is waited for.
class WaitRounds {
 public:
  explicit WaitRounds(const MpiWaiting& waiting);
  // Gives the core away unless it may be kept. True now and then once the deadline has passed.
  bool next();

 private:
  const MpiWaiting& waiting_;
  int64_t begin_ns_;
  int64_t round_ = 0;
};

// MPI counts bytes in an int; longer messages go in pieces (D23).
constexpr int64_t mpi_largest_message = int64_t{1} << 30;

// Throws CommError with MPI's text if code is not MPI_SUCCESS.
void check_mpi(int code, const char* call);

// Requests on their way, each for one peer. What has not ended when this is destroyed is abandoned.
class MpiRequests {
 public:
  explicit MpiRequests(int64_t largest_piece = mpi_largest_message)
      : largest_piece_(largest_piece) {}
  ~MpiRequests() { abandon(); }
  MpiRequests(const MpiRequests&) = delete;
  MpiRequests& operator=(const MpiRequests&) = delete;
  // Zero bytes need no message.
  void send(const void* data, int64_t n_bytes, int peer, int tag, MPI_Comm comm);
  void recv(void* data, int64_t n_bytes, int peer, int tag, MPI_Comm comm);

  bool test();  // true when all are done
  // Returns when all are done. On the deadline throws CommError(what(peers that have not come)).
  void wait(const MpiWaiting& waiting,
            const std::function<std::string(const std::vector<int>&)>& what);
  // After an error: takes back the receives that have not begun, so that a message that comes late
  // is not written to a buffer that is gone. The communicator's later messages no longer match.
  void abandon();

 private:
  std::vector<int> missing_peers();
  int64_t largest_piece_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
};

}  // namespace testbed
