// Whose fault a wrong value in a collective is, from where it was seen and what it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/communicator.hpp"
#include "runtime/accept/case.hpp"
#include "runtime/accept/collective_values.hpp"

namespace testbed {

struct WrongElement {
  int64_t offset = 0;  // in what the rank was given
  uint32_t is = 0;     // bits
  uint32_t should_be = 0;
  bool operator==(const WrongElement&) const = default;
};

// What came out wrong of one call on one rank.
struct WrongCall {
  int64_t call = 0;
  int64_t bytes = 0;       // the payload's
  int64_t n_elements = 0;  // that the rank was given
  int64_t n_wrong = 0;
  std::vector<WrongElement> first;  // the first of them, not empty
};

// A group in which some rank was given wrong values.
struct WrongValues {
  CommOp op = CommOp::all_reduce;
  std::vector<int> ranks;                       // of the world, by rank in the group
  std::vector<std::vector<WrongCall>> by_rank;  // [group size], calls ascending
  std::vector<int64_t> n_calls = {};            // [group size] that were checked
};

// Of broadcasts: every rank is the root in turn.
constexpr int root_of(int64_t call, int group_size) { return static_cast<int>(call % group_size); }

struct CollectiveBlame {
  std::string reason;         // op, ranks, size, rank, offset, how many: one line
  std::vector<Blame> blamed;  // with `host` left to the caller
};

// Of the first call in which a value was wrong. What all ranks see alike was contributed wrongly,
// and the difference may tell by whom; what one rank alone sees went wrong on its way to it.
CollectiveBlame blame_for(const WrongValues& wrong, const CollectiveValues& values);

// The ranks whose contribution, with one bit flipped, missing, or that of the call before, explains
// these elements of sums: all of them. offset0: of the payload where the rank's elements begin.
std::vector<int> suspects(const CollectiveValues& values,
                          int64_t call,
                          int64_t offset0,
                          const std::vector<WrongElement>& elements);

}  // namespace testbed
