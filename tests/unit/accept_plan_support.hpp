// What a whole acceptance would run.
#pragma once

#include <string>
#include <vector>

#include "runtime/accept/stage.hpp"

namespace testbed {

inline std::vector<PlannedCase> plan_all(const AcceptConfig& config,
                                         const AcceptanceProfile& profile,
                                         const std::vector<std::string>& hosts) {
  std::vector<PlannedCase> all;
  for (const auto& stage : make_stages()) {
    for (PlannedCase& planned : stage->plan({config, profile, hosts})) {
      all.push_back(std::move(planned));
    }
  }
  return all;
}

}  // namespace testbed
