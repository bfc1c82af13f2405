// `probe --acceptance`: an acceptance profile of what this machine does, measured by the stages
// that will hold it against the profile.
#pragma once

#include <string>
#include <vector>

#include "runtime/accept/case.hpp"
#include "runtime/accept/context.hpp"
#include "runtime/config/commands.hpp"

namespace testbed {

// What a context for it is made from.
AcceptConfig acceptance_of(const ProbeConfig& config);
AcceptanceProfile empty_profile(const std::string& device);  // "cpu" or "cuda"

// All ranks call it together; rank 0 writes the file. Throws CommError where a case fails.
void probe_acceptance(const AcceptContext& context, const ProbeConfig& config);

// What is expected of a machine that measured these figures: of each key, over devices, links and
// repeats.
std::vector<Expectation> expectations_of(const std::vector<Figure>& figures,
                                         const std::string& source);

}  // namespace testbed
