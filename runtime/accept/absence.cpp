#include "runtime/accept/absence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace testbed {

std::vector<Blame> blame_absence(const std::vector<RankAnswer>& answers,
                                 const std::vector<std::string>& hosts) {
  const auto host = [&](int rank) { return hosts[static_cast<size_t>(rank)]; };
  std::vector<Blame> blamed;
  for (const RankAnswer& answer : answers) {
    if (answer.answers) continue;
    blamed.push_back({.kind = Blame::Kind::rank,
                      .ranks = {answer.rank},
                      .host = host(answer.rank),
                      .what = answer.error});
  }
  if (!blamed.empty()) return blamed;
  std::set<std::vector<int>> links;
  for (const RankAnswer& answer : answers) {
    if (answer.error.empty() || !answer.awaited) continue;
    const auto [low, high] = std::minmax(answer.rank, *answer.awaited);
    if (!links.insert({low, high}).second) continue;
    blamed.push_back(
        {.kind = Blame::Kind::link,
         .ranks = {low, high},
         .host = host(low),
         .what = fmt::format(
             "rank {} waited for a message of rank {} in vain", answer.rank, *answer.awaited)});
  }
  return blamed;
}

}  // namespace testbed
