// `testbed plan` on a terminal.
#pragma once

#include <string>

#include "runtime/plan/plan_report.hpp"

namespace testbed {

// At most 100 columns, one section per subject.
std::string plan_table(const plan::PlanReport& report);

}  // namespace testbed
