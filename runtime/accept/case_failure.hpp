// A case fails: several faults of it are one reason.
#pragma once

#include <string>

#include "runtime/accept/case.hpp"

namespace testbed {

inline void fail(CaseResult& result, const std::string& reason) {
  if (result.status == CaseStatus::passed) result.reason.clear();
  result.status = CaseStatus::failed;
  result.reason += (result.reason.empty() ? "" : "; ") + reason;
}

}  // namespace testbed
