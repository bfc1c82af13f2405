#include "runtime/accept/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"

namespace testbed {
namespace {

std::string name_of(const CaseResult& result) {
  return fmt::format("{}/{}", result.stage, result.name);
}

std::string line_of(const CaseResult& result) {
  return result.reason.empty() ? name_of(result)
                               : fmt::format("{}: {}", name_of(result), result.reason);
}

// Whether the figure makes the expectation one that was met, or needs not be: of gates that only
// the algorithm tells apart, the best has to be met by a figure, and the others need not.
bool settles(const Figure& figure, const Expectation& expectation) {
  if (covers(expectation.key, figure.key)) return true;
  if (!figure.gate || !figure.gate->key.algorithm || !expectation.key.algorithm) return false;
  FigureKey of_any = expectation.key;
  of_any.algorithm.reset();
  if (!covers(of_any, figure.key)) return false;
  // As good as it would have had to be.
  return more_is_better(figure.key) ? figure.gate->expected >= limit_of(expectation)
                                    : figure.gate->expected <= limit_of(expectation);
}

using Open = std::vector<const Expectation*>;

// Those of the profile for which nothing was measured.
Open open_expectations(const Acceptance& acceptance) {
  Open open;
  open.reserve(acceptance.profile.expectations.size());
  for (const Expectation& expectation : acceptance.profile.expectations) {
    open.push_back(&expectation);
  }
  for (const CaseResult& result : acceptance.cases) {
    for (const Figure& figure : result.figures) {
      std::erase_if(open, [&figure](const Expectation* expectation) {
        return settles(figure, *expectation);
      });
    }
  }
  return open;
}

std::string line_of(const Expectation& expectation) {
  return fmt::format("{} ({})", describe(expectation.key), expectation.where);
}

Coverage coverage_of(const Acceptance& acceptance, const Asked& asked, const Open& open) {
  Coverage coverage;
  for (const PlannedCase& planned : asked.cases) ++coverage.cases[planned.stage].second;
  for (const CaseResult& result : acceptance.cases) {
    if (result.status != CaseStatus::skipped) ++coverage.cases[result.stage].first;
    for (const Figure& figure : result.figures) {
      ++coverage.figures;
      coverage.gated += int{figure.gate.has_value()};
    }
  }
  for (const Expectation* expectation : open) {
    coverage.gates_not_met_by_a_figure.push_back(line_of(*expectation));
  }
  return coverage;
}

// Whether a figure for it was asked for: one of a case that was chosen, or any; but --quick leaves
// sizes out.
bool is_asked_for(const Expectation& expectation, const Asked& asked) {
  const auto met_by_any = [&](bool any_size) {
    return std::any_of(asked.cases.begin(), asked.cases.end(), [&](const PlannedCase& planned) {
      return may_meet(planned, expectation, any_size);
    });
  };
  if (met_by_any(false)) return true;
  return !asked.chosen && !(asked.quick && met_by_any(true));
}

// Lines of those cases that are so; the worst says the verdict.
class Reasons {
 public:
  explicit Reasons(Acceptance& acceptance) : acceptance_(acceptance) {}

  void add(Verdict verdict, std::string reason) {
    // Reasons come in the order of precedence: the first sets the verdict.
    if (acceptance_.reasons.empty()) acceptance_.verdict = verdict;
    acceptance_.reasons.push_back(std::move(reason));
  }
  template <typename Which>
  void add_cases(Verdict verdict, const Which& which) {
    for (const CaseResult& result : acceptance_.cases) {
      if (which(result)) add(verdict, line_of(result));
    }
  }

 private:
  Acceptance& acceptance_;
};

void add_flaky(const Acceptance& acceptance, Reasons& reasons) {
  const auto n =
      std::count_if(acceptance.cases.begin(), acceptance.cases.end(), [](const CaseResult& result) {
        return result.status == CaseStatus::flaky;
      });
  if (n <= acceptance.profile.flaky_allowed) return;
  reasons.add(Verdict::reject,
              fmt::format("{} flaky case{}, the profile allows {}",
                          n,
                          n == 1 ? "" : "s",
                          acceptance.profile.flaky_allowed));
  reasons.add_cases(Verdict::reject,
                    [](const CaseResult& r) { return r.status == CaseStatus::flaky; });
}

// Of those that were chosen any; else what could not be foreseen, as a model that does not fit.
bool should_have_run(const CaseResult& result, const Asked& asked) {
  if (result.status != CaseStatus::skipped) return false;
  return asked.chosen ||
         std::any_of(asked.cases.begin(), asked.cases.end(), [&](const PlannedCase& planned) {
           return planned.stage == result.stage && planned.name == result.name && !planned.skip;
         });
}

// Nothing tested is never a pass (D34).
void add_incomplete(const Acceptance& acceptance, const Asked& asked, Open open, Reasons& reasons) {
  const auto ran = [](const CaseResult& r) { return r.status != CaseStatus::skipped; };
  const auto n_run = std::count_if(acceptance.cases.begin(), acceptance.cases.end(), ran);
  if (n_run == 0) {
    reasons.add(Verdict::incomplete,
                asked.cases.empty() ? "no case matches what was asked for: nothing was tested"
                                    : "every case was skipped: nothing was tested");
  }
  if (acceptance.finished && acceptance.cases.size() < asked.cases.size()) {
    reasons.add(Verdict::incomplete,
                fmt::format("{} of {} cases were not reached",
                            asked.cases.size() - acceptance.cases.size(),
                            asked.cases.size()));
  }
  reasons.add_cases(Verdict::incomplete,
                    [&](const CaseResult& r) { return should_have_run(r, asked); });
  for (const CaseResult& result : acceptance.cases) {
    for (const std::string& part : result.not_run) {
      reasons.add(Verdict::incomplete, fmt::format("{}: {}", name_of(result), part));
    }
  }
  std::erase_if(open, [&](const Expectation* each) { return !is_asked_for(*each, asked); });
  if (open.empty()) return;
  reasons.add(Verdict::incomplete,
              fmt::format("{} of {} figures that the profile expects were not measured, {}{}",
                          open.size(),
                          acceptance.profile.expectations.size(),
                          open.size() == 1 ? "" : "the first ",
                          line_of(*open.front())));
}

}  // namespace

void conclude(Acceptance& acceptance, const Asked& asked) {
  Open open = open_expectations(acceptance);
  acceptance.coverage = coverage_of(acceptance, asked, open);
  acceptance.reasons.clear();
  acceptance.verdict = Verdict::accept;
  Reasons reasons(acceptance);
  reasons.add_cases(Verdict::corruption, [](const CaseResult& r) { return r.corrupt; });
  reasons.add_cases(Verdict::infrastructure, [](const CaseResult& r) {
    return !r.corrupt && r.status == CaseStatus::error;
  });
  if (!acceptance.finished) {
    reasons.add(Verdict::infrastructure,
                "the acceptance had not come to its end when this was written");
  }
  reasons.add_cases(Verdict::reject, [](const CaseResult& r) {
    return !r.corrupt && r.status == CaseStatus::failed;
  });
  add_flaky(acceptance, reasons);
  add_incomplete(acceptance, asked, std::move(open), reasons);
}

}  // namespace testbed
