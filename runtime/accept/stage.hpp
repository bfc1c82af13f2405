// A stage of an acceptance: plans its cases and runs them one by one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/accept/case.hpp"
#include "runtime/accept/context.hpp"

namespace testbed {

// What a plan is made from: nothing here needs a device or the other ranks.
struct AcceptPlanInput {
  const AcceptConfig& config;
  const AcceptanceProfile& profile;
  std::vector<std::string> hosts;  // [world_size]
};

class Stage {
 public:
  virtual ~Stage() = default;
  virtual std::string_view name() const = 0;
  // The same on every rank. --quick makes it shorter, never empty: what is left out is a skipped
  // case.
  virtual std::vector<PlannedCase> plan(const AcceptPlanInput& input) const = 0;
  // All ranks call it together. Rank 0's result counts; the others' may be empty. Judged figures
  // carry their gates (gates.hpp). Throws Error when it cannot be carried out: the acceptance ends
  // there.
  virtual CaseResult run(const AcceptContext& context, const PlannedCase& planned) = 0;
};

// All, in the order in which they run.
std::vector<std::unique_ptr<Stage>> make_stages();

std::unique_ptr<Stage> make_preflight_stage();
std::unique_ptr<Stage> make_device_stage();
std::unique_ptr<Stage> make_links_stage();
std::unique_ptr<Stage> make_collectives_stage();
std::unique_ptr<Stage> make_model_stage();
std::unique_ptr<Stage> make_corruption_stage();
std::unique_ptr<Stage> make_soak_stage();

}  // namespace testbed
