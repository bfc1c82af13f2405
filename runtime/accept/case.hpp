// One case of an acceptance: what was planned, what was measured, how it was judged and who is
// blamed. Plain data; every report reads it and nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/accept/acceptance_profile.hpp"

namespace testbed {

// What would run: the same list on every rank, made without communication.
struct PlannedCase {
  std::string stage;        // "preflight", "device", "links", "collectives", "model", "corruption",
                            // "soak"
  std::string name;         // unique in its stage: "all_reduce 2 ranks 8 MiB"
  std::string explanation;  // --explain: what is done, what is measured, what is held against what
  double estimated_s = 0.0;
  double deadline_s = 0.0;          // of the case as a whole: the watchdog's
  std::optional<std::string> skip;  // why it will not run here; then it counts as not covered
  // The figures that it is to measure, as far as they are known: fields not set may be anything.
  std::vector<FigureKey> measures = {};
  std::vector<int64_t> sizes = {};  // bytes of those that have some; empty: not known
  // The stage's own parameters, for its run().
  std::map<std::string, int64_t> numbers = {};
  std::map<std::string, std::string> texts = {};
  bool once = false;  // not repeated if it fails: it takes as long as was asked for
};

enum class CaseStatus : uint8_t {
  passed,
  failed,  // a gate was missed, or a value was wrong
  flaky,   // failed, and passed when repeated
  error,   // could not be carried out: a rank or device failed, a deadline passed
  skipped  // not run: the reason says why
};
constexpr const char* case_status_name(CaseStatus status) {
  constexpr const char* names[] = {"passed", "failed", "flaky", "error", "skipped"};
  return names[static_cast<int>(status)];
}

// A measured figure, and the gate it was held against if the profile has one.
struct Figure {
  FigureKey key;
  std::string unit;                 // "GB/s", "us", "ms", "TFLOP/s", "1/s", ""
  std::vector<double> samples;      // of the repeats; the median is judged, the worst is shown
  std::optional<Expectation> gate;  // empty: shown, not judged
  bool passed = true;
  std::vector<int> ranks =
      {};              // whose figure it is: one device, the two ends of a link; empty: all
  bool alone = false;  // a link that was measured once more by itself
};

// What is at fault, as far as it could be told.
struct Blame {
  enum class Kind : uint8_t { host, device, link, rank, layer };
  Kind kind = Kind::rank;
  std::vector<int> ranks;  // one; the two ends of a link, lower first
  std::string host;        // of a host's blame, else of the first rank
  std::string what;        // "reads 31 GB/s, its cohort 62", "offset 4096 of all_reduce on tp ..."
  bool operator==(const Blame&) const = default;
};
constexpr const char* blame_kind_name(Blame::Kind kind) {
  constexpr const char* names[] = {"host", "device", "link", "rank", "layer"};
  return names[static_cast<int>(kind)];
}

// A matrix over ranks, for the heat map: row i, column j; nullopt where nothing was measured.
struct RankMatrix {
  std::string title;
  std::string unit;
  bool more_is_better = true;
  std::vector<std::vector<std::optional<double>>> values;  // [world_size][world_size]
};

struct CaseResult {
  std::string stage;
  std::string name;
  CaseStatus status = CaseStatus::passed;
  bool corrupt = false;  // a value was wrong, not slow
  std::string reason;    // of every status but passed: one line
  std::vector<Blame> blamed = {};
  std::vector<Figure> figures = {};
  std::vector<RankMatrix> matrices = {};
  std::vector<std::string> notes = {};    // what a reader has to know: "NCCL chose the ring"
  std::vector<std::string> not_run = {};  // parts that were planned: the verdict is incomplete
  double seconds = 0.0;
  int attempts = 1;
};

}  // namespace testbed
