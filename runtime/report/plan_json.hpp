// `testbed plan` as strict JSON: bytes and FLOPs are exact integers, times milliseconds.
#pragma once

#include <string>

#include "runtime/plan/plan_report.hpp"

namespace testbed {

std::string plan_json(const plan::PlanReport& report);

}  // namespace testbed
