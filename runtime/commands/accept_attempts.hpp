// A case as often as it takes: once, or if it failed twice more, to tell a flaky one.
#pragma once

#include <optional>
#include <string>

#include "runtime/accept/context.hpp"
#include "runtime/accept/stage.hpp"

namespace testbed {

struct CaseOutcome {
  CaseResult result;  // on rank 0
  // A rank could not go on: the result says which and why, as far as they could be asked, and the
  // job has to be ended.
  bool ended = false;
};

// Rank 0 calls it once it has written its files, and the others, as they come, wait for it: what a
// disk takes, to_write_s at most, is no matter of the deadline of a collective.
void go_on_together(const AcceptContext& context, double to_write_s);

// All ranks call it together. Where the job has to be ended only rank 0 returns; the others wait
// for that, and throw CommError if it does not come.
CaseOutcome run_case(const AcceptContext& context, Stage& stage, const PlannedCase& planned);

// Of three attempts, the first of which failed: flaky if both others passed, and then nobody is
// blamed; else failed, with those blamed whom two attempts blame.
CaseResult merged(std::vector<CaseResult> attempts);

}  // namespace testbed
