#include "runtime/accept/profile_gaps.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/accept/gates.hpp"

namespace testbed {
namespace {

using Path = std::vector<std::string>;

// From the general to the particular; sizes, algorithms and models are not told apart.
Path path_of(const FigureKey& key) {
  Path path{key.figure.substr(0, key.figure.find('.')), key.figure};
  if (key.scope) path.push_back(*key.scope);
  if (key.op) path.push_back(*key.op);
  if (key.ranks) path.push_back(fmt::format("{} ranks", *key.ranks));
  return path;
}

bool begins_with(const Path& path, const Path& beginning) {
  return path.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), path.begin());
}

// A figure's own name says its family.
std::string name_of(const Path& path) {
  return path.size() == 1 ? path.front()
                          : fmt::format("{}", fmt::join(path.begin() + 1, path.end(), " "));
}

bool is_expected(const AcceptanceProfile& profile, const FigureKey& key) {
  PlannedCase alone;
  alone.measures = {key};
  return std::any_of(profile.expectations.begin(),
                     profile.expectations.end(),
                     [&](const Expectation& each) { return may_meet(alone, each, true); });
}

}  // namespace

std::vector<std::string> profile_gaps(const AcceptanceProfile& profile,
                                      const std::vector<PlannedCase>& cases) {
  std::vector<Path> expected;
  std::vector<Path> open;
  for (const PlannedCase& planned : cases) {
    if (planned.skip) continue;
    for (const FigureKey& key : planned.measures) {
      (is_expected(profile, key) ? expected : open).push_back(path_of(key));
    }
  }
  const auto has_expected = [&](const Path& beginning) {
    return std::any_of(expected.begin(), expected.end(), [&](const Path& path) {
      return begins_with(path, beginning);
    });
  };
  std::vector<std::string> gaps;
  for (const Path& path : open) {
    Path gap;
    do {
      gap.push_back(path[gap.size()]);
    } while (gap.size() < path.size() && has_expected(gap));
    const std::string name = name_of(gap);
    if (std::find(gaps.begin(), gaps.end(), name) == gaps.end()) gaps.push_back(name);
  }
  return gaps;
}

}  // namespace testbed
