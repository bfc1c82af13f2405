// What rank 0 writes down of an acceptance while it runs and at its end.
#pragma once

#include <string>
#include <vector>

#include "runtime/accept/context.hpp"
#include "runtime/accept/verdict.hpp"

namespace testbed {

// The four files of the folder --output. Before every case they are written with what is known and
// the case as one that has not ended, so that whatever happens they say how far it came; the
// watchdog has what it has to write ready.
class AcceptanceLog {
 public:
  // acceptance: all that is known before the first case.
  AcceptanceLog(const AcceptContext& context, Acceptance acceptance, Asked asked);

  // All of these throw ConfigError or Error where the folder cannot be written to (any more).
  void begin(const PlannedCase& planned);
  void add(CaseResult result);
  // Afterwards the watchdog has nothing to write any more: it would be less than is known.
  const Acceptance& finish();
  // The summary of what is finished, on standard output.
  void show() const;

 private:
  void read_baseline(const std::string& path);

  const AcceptContext& context_;
  Acceptance acceptance_;
  Asked asked_;
  std::optional<Acceptance> baseline_;
  int64_t begin_ns_;
};

// By another rank once rank 0 can say nothing any more: what is said takes the place of the words
// of a case that had not ended, in the files as far as they are seen here.
void write_for_rank_0(const AcceptConfig& config, const std::string& said);

}  // namespace testbed
