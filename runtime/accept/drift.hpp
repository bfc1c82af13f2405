// How the figures of an acceptance moved since an earlier one (--baseline).
#pragma once

#include <vector>

#include "runtime/accept/verdict.hpp"

namespace testbed {

// Of every figure that both have, by key and ranks, in the order of `now`.
std::vector<Drift> drift_since(const Acceptance& before, const Acceptance& now);

}  // namespace testbed
