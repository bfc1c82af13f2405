// What an acceptance measures and its profile expects nothing of: it is shown, and perhaps held
// against its cohort, but no gate judges it.
#pragma once

#include <string>
#include <vector>

#include "runtime/accept/acceptance_profile.hpp"
#include "runtime/accept/case.hpp"

namespace testbed {

// Of the cases that are to run, in few words: "model" where no figure of models is expected, else
// "link.one_way_us", "collective.us between-hosts", "collective.us within-host broadcast", ...
std::vector<std::string> profile_gaps(const AcceptanceProfile& profile,
                                      const std::vector<PlannedCase>& cases);

}  // namespace testbed
