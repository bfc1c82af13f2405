#include "runtime/accept/collective_groups.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/rank_values.hpp"

namespace testbed {
namespace {

using Ranks = std::vector<int>;

// [host] its ranks, hosts in the order in which they first appear.
std::vector<Ranks> ranks_by_host(const std::vector<std::string>& hosts) {
  std::map<std::string, size_t> index;
  std::vector<Ranks> by_host;
  for (size_t r = 0; r < hosts.size(); ++r) {
    const auto [entry, is_new] = index.try_emplace(hosts[r], by_host.size());
    if (is_new) by_host.emplace_back();
    by_host[entry->second].push_back(static_cast<int>(r));
  }
  return by_host;
}

// Where pieces of `width` begin that cover 0 .. n-1; the last one overlaps the one before if n does
// not divide. None if n < width.
std::vector<size_t> piece_starts(size_t n, size_t width) {
  std::vector<size_t> starts;
  if (n < width) return starts;
  starts.reserve(n / width + 1);
  for (size_t begin = 0; begin + width <= n; begin += width) starts.push_back(begin);
  if (n % width != 0) starts.push_back(n - width);
  return starts;
}

std::vector<Ranks> groups_within(const std::vector<Ranks>& by_host, size_t size) {
  std::vector<Ranks> groups;
  for (const Ranks& ranks : by_host) {
    for (const size_t begin : piece_starts(ranks.size(), size)) {
      const auto first = ranks.begin() + static_cast<std::ptrdiff_t>(begin);
      groups.emplace_back(first, first + static_cast<std::ptrdiff_t>(size));
    }
  }
  return groups;
}

// `each` ranks of every one of these hosts. Where hosts have unequally many, the last ranks of the
// smaller ones are in several groups.
void add_groups_of_hosts(const std::vector<Ranks>& hosts, size_t each, std::vector<Ranks>& groups) {
  size_t most = 0;
  for (const Ranks& ranks : hosts) {
    if (ranks.size() < each) return;
    most = std::max(most, ranks.size());
  }
  for (const size_t begin : piece_starts(most, each)) {
    Ranks group;
    for (const Ranks& ranks : hosts) {
      const auto first =
          ranks.begin() + static_cast<std::ptrdiff_t>(std::min(begin, ranks.size() - each));
      group.insert(group.end(), first, first + static_cast<std::ptrdiff_t>(each));
    }
    std::sort(group.begin(), group.end());
    groups.push_back(std::move(group));
  }
}

std::vector<Ranks> groups_between(const std::vector<Ranks>& by_host, size_t size) {
  size_t n_hosts = std::min(size, by_host.size());
  while (size % n_hosts != 0) --n_hosts;
  std::vector<Ranks> groups;
  if (n_hosts < 2) return groups;
  for (const size_t begin : piece_starts(by_host.size(), n_hosts)) {
    const auto first = by_host.begin() + static_cast<std::ptrdiff_t>(begin);
    add_groups_of_hosts(
        {first, first + static_cast<std::ptrdiff_t>(n_hosts)}, size / n_hosts, groups);
  }
  return groups;
}

// Each into the first turn whose groups are on other hosts.
GroupSet in_turns(const std::vector<Ranks>& groups, const std::vector<std::string>& hosts) {
  GroupSet set{.size = static_cast<int>(groups.front().size()),
               .scope = std::string(scope_of(hosts, groups.front())),
               .turns = {}};
  std::vector<std::set<std::string>> busy;  // [turn]
  for (const Ranks& group : groups) {
    std::set<std::string> mine;
    for (const int rank : group) mine.insert(hosts[static_cast<size_t>(rank)]);
    size_t turn = 0;
    while (turn < busy.size() &&
           std::any_of(mine.begin(), mine.end(), [&](const std::string& host) {
             return busy[turn].count(host) > 0;
           })) {
      ++turn;
    }
    if (turn == busy.size()) {
      busy.emplace_back();
      set.turns.emplace_back();
    }
    busy[turn].insert(mine.begin(), mine.end());
    set.turns[turn].push_back(group);
  }
  return set;
}

}  // namespace

std::vector<GroupSet> group_sets(const std::vector<std::string>& hosts) {
  const std::vector<Ranks> by_host = ranks_by_host(hosts);
  std::vector<GroupSet> sets;
  for (const size_t size : {size_t{2}, size_t{4}, size_t{8}}) {
    if (size >= hosts.size()) continue;  // that is all of them
    const std::vector<Ranks> within = groups_within(by_host, size);
    if (!within.empty()) sets.push_back(in_turns(within, hosts));
    const std::vector<Ranks> between = groups_between(by_host, size);
    if (!between.empty()) sets.push_back(in_turns(between, hosts));
  }
  sets.push_back(in_turns({all_ranks(static_cast<int>(hosts.size()))}, hosts));
  return sets;
}

}  // namespace testbed
