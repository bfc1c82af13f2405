#include "runtime/accept/gates.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/check.hpp"
#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/figures.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

// How many of a key's fields are set.
int n_fields(const FigureKey& key) {
  return int{key.op.has_value()} + int{key.ranks.has_value()} + int{key.bytes.has_value()} +
         int{key.scope.has_value()} + int{key.algorithm.has_value()} + int{key.dtype.has_value()} +
         int{key.model.has_value()};
}

std::string of_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "";
  return fmt::format(" of rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, " and "));
}

// What is missed of a gate, as a fraction of it; above 0 is a failure.
double missed_by(const Figure& figure) {
  const double limit = limit_of(*figure.gate);
  const double value = median(figure.samples);
  return more_is_better(figure.key) ? (limit - value) / limit : (value - limit) / limit;
}

}  // namespace

bool covers(const FigureKey& expected, const FigureKey& key) {
  const auto agrees = [](const auto& of_expected, const auto& of_key) {
    return !of_expected || of_expected == of_key;
  };
  return expected.figure == key.figure && agrees(expected.op, key.op) &&
         agrees(expected.ranks, key.ranks) && agrees(expected.bytes, key.bytes) &&
         agrees(expected.scope, key.scope) && agrees(expected.algorithm, key.algorithm) &&
         agrees(expected.dtype, key.dtype) && agrees(expected.model, key.model);
}

bool more_is_better(const FigureKey& key) {
  const std::optional<FigureKind> kind = figure_kind(key.figure);
  CHECK(kind.has_value());
  return kind->more_is_better;
}

double limit_of(const Expectation& expectation) {
  const double sign = more_is_better(expectation.key) ? -1.0 : 1.0;
  return expectation.expected * (1.0 + sign * expectation.tolerance);
}

std::optional<Expectation> expectation_for(const AcceptanceProfile& profile, const FigureKey& key) {
  const Expectation* best = nullptr;
  for (const Expectation& expectation : profile.expectations) {
    if (!covers(expectation.key, key)) continue;
    if (best == nullptr || n_fields(expectation.key) > n_fields(best->key)) best = &expectation;
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

bool may_meet(const PlannedCase& planned, const Expectation& expectation, bool any_size) {
  const FigureKey& expected = expectation.key;
  const auto has_size = [&](int64_t n_bytes) {
    return any_size || planned.sizes.empty() ||
           std::find(planned.sizes.begin(), planned.sizes.end(), n_bytes) != planned.sizes.end();
  };
  if (expected.bytes && !has_size(*expected.bytes)) return false;
  const auto agrees = [](const auto& a, const auto& b) { return !a || !b || a == b; };
  return std::any_of(
      planned.measures.begin(), planned.measures.end(), [&](const FigureKey& measured) {
        return expected.figure == measured.figure && agrees(expected.op, measured.op) &&
               agrees(expected.ranks, measured.ranks) && agrees(expected.scope, measured.scope) &&
               agrees(expected.algorithm, measured.algorithm) &&
               agrees(expected.dtype, measured.dtype) && agrees(expected.model, measured.model);
      });
}

Figure judged(const AcceptanceProfile& profile,
              FigureKey key,
              std::vector<double> samples,
              std::vector<int> ranks) {
  CHECK(!samples.empty());
  // One rank moves nothing over a link (D35).
  CHECK(key.figure != "collective.busbw_gb_s" || key.ranks != 1);
  const std::optional<FigureKind> kind = figure_kind(key.figure);
  CHECK(kind.has_value());
  Figure figure{.key = std::move(key),
                .unit = std::string(kind->unit),
                .samples = std::move(samples),
                .gate = std::nullopt,
                .ranks = std::move(ranks)};
  figure.gate = expectation_for(profile, figure.key);
  // A comparison with nan is false: what could not be measured is not good enough.
  if (figure.gate) figure.passed = missed_by(figure) <= 0.0;
  return figure;
}

void judge(CaseResult& result) {
  const Figure* worst = nullptr;
  for (const Figure& figure : result.figures) {
    if (!figure.passed && (worst == nullptr || missed_by(figure) > missed_by(*worst))) {
      worst = &figure;
    }
  }
  if (worst == nullptr) return;
  const auto n_missed = std::count_if(result.figures.begin(),
                                      result.figures.end(),
                                      [](const Figure& figure) { return !figure.passed; });
  std::string reason = fmt::format("{}{}: {:.4g} {}, must be {} {:.4g} (expected {:.4g}, {})",
                                   describe(worst->key),
                                   of_ranks(worst->ranks),
                                   median(worst->samples),
                                   worst->unit,
                                   more_is_better(worst->key) ? "at least" : "at most",
                                   limit_of(*worst->gate),
                                   worst->gate->expected,
                                   worst->gate->where);
  if (n_missed > 1) reason += fmt::format("; {} more figures miss their gates", n_missed - 1);
  if (result.status == CaseStatus::passed) {
    result.status = CaseStatus::failed;
    result.reason = std::move(reason);
  } else {
    result.notes.push_back(std::move(reason));
  }
}

std::vector<size_t> outliers(std::span<const double> values,
                             double tolerance,
                             bool more_is_better) {
  constexpr size_t smallest_cohort = 3;
  if (values.size() < smallest_cohort) return {};
  const double middle = median(values);
  std::vector<double> deviations(values.begin(), values.end());
  for (double& deviation : deviations) deviation = std::abs(deviation - middle);
  const double allowed = std::max(median(deviations), tolerance * std::abs(middle));
  std::vector<size_t> found;
  for (size_t i = 0; i < values.size(); ++i) {
    const double worse_by = more_is_better ? middle - values[i] : values[i] - middle;
    if (worse_by > allowed) found.push_back(i);
  }
  return found;
}

}  // namespace testbed
