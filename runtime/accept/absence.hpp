// Who is at fault when a case could not be carried out: from what each rank says afterwards.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/op_row.hpp"
#include "runtime/accept/case.hpp"

namespace testbed {

// A message between two ranks, as either of them has counted it; peer is the other one.
using Message = OpRow::Operation;

// What a rank said once a case could not be carried out.
struct RankAnswer {
  int rank = 0;
  bool answers = true;                  // else nothing came from it
  std::string error;                    // empty: it has none
  bool is_own = false;                  // the error has nothing to do with other ranks (CommError)
  std::optional<Message> awaited = {};  // that it waited for in vain
  std::optional<Message> given = {};    // the last one that it sent, whether it came or not
};

struct Absence {
  std::vector<Blame> blamed;
  // Nobody is blamed though ranks waited for messages in vain: who waited for whom. Else empty.
  std::string unclear;
};

// Of the first of these that there are, and then of nobody else:
// - Ranks with an error of their own; not if every rank of several has one.
// - Ranks that do not answer.
// - Links whose one end has sent what the other waits for. Where it cannot be told whether it has,
//   for it sent to others since: links whose other end waits for no message, or for this end's. Who
//   waits for a rank that waits itself says nothing of their link; nor does a collective that did
//   not end, for others were late to it because of the first.
Absence blame_absence(const std::vector<RankAnswer>& answers,
                      const std::vector<std::string>& hosts);

}  // namespace testbed
