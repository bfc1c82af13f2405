#include "runtime/accept/drift.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

// A collective's figure is of the slowest of the groups, whichever that was, and by what algorithm:
// a group that falls behind, or a worse algorithm, is what drift has to show. A link by itself is
// not the link beside others.
bool is_same(const Figure& a, const Figure& b) {
  if (!a.key.figure.starts_with("collective.")) {
    return a.key == b.key && a.ranks == b.ranks && a.alone == b.alone;
  }
  FigureKey key = a.key;
  key.algorithm = b.key.algorithm;
  return key == b.key;
}

const Figure* find_figure(const Acceptance& acceptance, const Figure& figure) {
  for (const CaseResult& result : acceptance.cases) {
    for (const Figure& other : result.figures) {
      if (is_same(other, figure)) return &other;
    }
  }
  return nullptr;
}

// Of the repeats: their ranges do not meet. One sample has no range.
bool are_apart(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() < 2 || b.size() < 2) return false;
  const auto [a_min, a_max] = std::minmax_element(a.begin(), a.end());
  const auto [b_min, b_max] = std::minmax_element(b.begin(), b.end());
  return *a_max < *b_min || *b_max < *a_min;
}

}  // namespace

std::optional<std::string> refusal_of_baseline(const Acceptance& before, const Acceptance& now) {
  if (before.device == now.device && before.world_size == now.world_size) return std::nullopt;
  return fmt::format("is of {} {} ranks, this acceptance of {} {} ranks",
                     before.world_size,
                     before.device,
                     now.world_size,
                     now.device);
}

std::vector<std::string> baseline_labels(const Acceptance& before, const Acceptance& now) {
  std::vector<std::string> labels;
  if (before.profile.name != now.profile.name) {
    labels.push_back(fmt::format("the baseline was held against the profile {}, this against {}",
                                 before.profile.name,
                                 now.profile.name));
  }
  if (before.hosts != now.hosts || before.devices != now.devices) {
    labels.emplace_back("the baseline is of other hosts or devices");
  }
  if (!before.finished) labels.emplace_back("the baseline had not come to its end");
  return labels;
}

std::vector<Drift> drift_since(const Acceptance& before, const Acceptance& now) {
  std::vector<Drift> all;
  for (const CaseResult& result : now.cases) {
    for (const Figure& figure : result.figures) {
      const Figure* earlier = find_figure(before, figure);
      if (earlier == nullptr || earlier->samples.empty() || figure.samples.empty()) continue;
      Drift drift{.key = figure.key,
                  .ranks = figure.ranks,
                  .before = median(earlier->samples),
                  .now = median(figure.samples)};
      if (drift.before == 0.0) continue;  // no ratio
      drift.change = drift.now / drift.before - 1.0;
      drift.beyond_spread = are_apart(earlier->samples, figure.samples);
      all.push_back(std::move(drift));
    }
  }
  return all;
}

}  // namespace testbed
