// RollCall: who is still there, asked once a wait has been in vain. Ranks that wait answer each
// other's call, so that one whose own wait merely began later is not taken for dead. Over MPI, on a
// communicator of its own; a job has one, as the first call ends it.
#pragma once

#include <mpi.h>

#include <array>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/mpi_wait.hpp"

namespace testbed {

class RollCall {
 public:
  // All ranks of the job together; their hosts.
  explicit RollCall(std::vector<std::string> hosts);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // If a rank has called: tells all what this one is at. Cheap; for every look of a wait.
  void answer(std::string_view at);
  // Calls, as `at` has happened, and waits until all have answered, seconds at most. "ranks 1 (b),
  // 2 (b) did not answer within 2 s", or what each is at.
  std::string call(std::string_view at, double seconds);

 private:
  struct Word {
    std::array<char, 512> text{};
    MpiRequests incoming;
    MpiRequests outgoing;
  };
  bool is_called();
  void tell(std::string_view at);
  std::vector<int> silent();
  std::string name(int rank) const;

  std::vector<std::string> hosts_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::deque<Word> words_;  // [size]; mine is what I tell
  bool told_ = false;
};

}  // namespace testbed
