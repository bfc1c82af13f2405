// The verdict over all cases of an acceptance, and its exit code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/accept/acceptance_profile.hpp"
#include "runtime/accept/case.hpp"
#include "runtime/measure/run_record.hpp"

namespace testbed {

// Also exit codes. A worse one hides a milder one: corruption, then infrastructure, then reject,
// then incomplete.
enum class Verdict : int {
  accept = 0,
  reject = 1,          // a gate was missed
  incomplete = 2,      // nothing was tested, or not all that was asked for (D34)
  infrastructure = 3,  // a rank, link or device failed, a time-out, an internal error
  corruption = 4       // a value was wrong
};
constexpr const char* verdict_name(Verdict verdict) {
  constexpr const char* names[] = {
      "accept", "reject", "incomplete", "infrastructure", "corruption"};
  return names[static_cast<int>(verdict)];
}

// How much of what there is was tested.
struct Coverage {
  std::map<std::string, std::pair<int, int>> cases;  // by stage: run, planned
  int gated = 0;                                     // figures that were held against a gate
  int figures = 0;                                   // measured
  std::vector<std::string>
      gates_not_met_by_a_figure;  // expectations for which nothing was measured
};

// A figure against the last acceptance's (--baseline).
struct Drift {
  FigureKey key;
  std::vector<int> ranks;
  double before = 0.0;
  double now = 0.0;
  double change = 0.0;         // now / before - 1
  bool beyond_spread = false;  // of both acceptances' repeats
};

struct Acceptance {
  static constexpr const char* schema = "testbed-acceptance-1";
  Verdict verdict = Verdict::infrastructure;
  std::vector<std::string> reasons;  // of the verdict, most important first
  bool finished = false;             // false in what is written while it runs
  AcceptanceProfile profile;
  std::string device;  // kind
  int world_size = 1;
  std::vector<std::string> hosts;    // [world_size]
  std::vector<std::string> devices;  // [world_size] descriptions
  std::vector<std::string> labels;   // injected faults, "the profile was never tried on hardware"
  std::vector<CaseResult> cases;     // those that ran or were skipped
  Coverage coverage;
  std::vector<Drift> drift;
  FingerprintRecord fingerprint;
  std::string began;  // ISO 8601, UTC
  double seconds = 0.0;
};

// What was to be tested.
struct Asked {
  std::vector<PlannedCase> cases;
  // The user chose these among all: then each must run, and what the profile expects of others is
  // not asked for.
  bool chosen = false;
  bool quick = false;  // what the profile expects of sizes that no case has is not asked for
};

// Fills in coverage, verdict and reasons from the cases.
void conclude(Acceptance& acceptance, const Asked& asked);

}  // namespace testbed
