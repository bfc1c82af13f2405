// Who is at fault when ranks waited in vain: from what each says afterwards.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/accept/case.hpp"

namespace testbed {

// What a rank said once a case could not be carried out.
struct RankAnswer {
  int rank = 0;
  bool answers = true;              // else nothing came from it
  std::string error;                // empty: it has none
  std::optional<int> awaited = {};  // the rank whose message it waited for in vain
};

// A rank that does not answer is at fault, and nobody else then. If all answer, a message that did
// not come between two of them is their link's fault; a collective that did not end says nothing,
// for others were late to it because of the first.
std::vector<Blame> blame_absence(const std::vector<RankAnswer>& answers,
                                 const std::vector<std::string>& hosts);

}  // namespace testbed
