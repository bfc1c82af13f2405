// Waiting for memory that other ranks write.
#pragma once

#include <string>

#include "kernels/base/errors.hpp"
#include "parallel/comm/mpi_wait.hpp"

namespace testbed {

// Returns when done(). On the deadline throws CommError(missing()), unless that is "": it has just
// been done. Ranks that have cores of their own look without pause at first: what they wait for
// takes microseconds.
template <typename Done, typename Missing>
void wait_until(const MpiWaiting& waiting, const Done& done, const Missing& missing) {
  constexpr int looks_at_first = 4096;
  const int n_looks = waiting.may_spin ? looks_at_first : 1;
  for (int look = 0; look < n_looks; ++look) {
    if (done()) return;
  }
  WaitRounds rounds(waiting);
  while (!done()) {
    if (!rounds.next()) continue;
    const std::string text = missing();
    if (!text.empty()) throw CommError(text);
  }
}

}  // namespace testbed
