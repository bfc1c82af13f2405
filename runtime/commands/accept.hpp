// The accept command: plans all stages, runs their cases one by one and says the verdict.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "runtime/accept/context.hpp"
#include "runtime/accept/stage.hpp"

namespace testbed {

// What a rank does with its context; the exit code.
using AcceptWork = std::function<int(const AcceptContext&)>;

// --list and --explain, which need no device: what to print, and Verdict::accept or, where nothing
// matches, incomplete. nullopt: neither was asked for.
struct AcceptPlanText {
  std::string text;
  int exit_code = 0;
};
std::optional<AcceptPlanText> describe_acceptance(const AcceptPlanInput& input);

// Exit codes of an acceptance are its verdicts: a bug of testbed's, which of every other command is
// exit code 1, would be a reject. What the work throws as an Error with another exit code.
int with_exit_code_of_verdict(const std::function<int()>& work);

// All ranks call it together; the Verdict as exit code on every rank. Throws CommError once the
// verdict of a failed acceptance is written: the job has to be ended then, for not every rank may
// be there any more.
int run_acceptance(const AcceptContext& context);

}  // namespace testbed
