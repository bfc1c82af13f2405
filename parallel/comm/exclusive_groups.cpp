// Which groups have their links to themselves whenever they use them.
#include <algorithm>

#include "parallel/comm/sim_network.hpp"

namespace testbed {
namespace {

bool share_a_rank(const SimGroup& a, const SimGroup& b) {
  const std::vector<int>& ranks = b.info.world_ranks;
  return std::any_of(a.info.world_ranks.begin(), a.info.world_ranks.end(), [&](int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
}

}  // namespace

void SimNetwork::find_exclusive_groups() {
  struct Users {
    std::vector<size_t> groups;
    bool messages = false;
  };
  std::map<LinkName, Users> users_of;
  // Which of its pairs a group uses depends on the algorithm: all of them count.
  const auto each_link = [&](const SimGroup& group, auto&& visit) {
    for (const int a : group.info.world_ranks) {
      for (const int b : group.info.world_ranks) {
        if (a == b) continue;
        for (const LinkName& link : links_between(cluster_, a, b)) visit(link);
      }
    }
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    each_link(groups_[g], [&](const LinkName& link) {
      std::vector<size_t>& groups = users_of[link].groups;
      if (groups.empty() || groups.back() != g) groups.push_back(g);
    });
  }
  for (const auto& [source, target] : message_pairs_) {
    for (const LinkName& link : links_between(cluster_, source, target)) {
      users_of[link].messages = true;
    }
  }
  // A rank does one collective at a time, and it lasts until all of its ranks are done.
  std::map<std::pair<size_t, size_t>, bool> at_once;
  const auto may_be_at_once = [&](size_t a, size_t b) {
    const auto [entry, is_new] = at_once.try_emplace(std::minmax(a, b), false);
    if (is_new) entry->second = !share_a_rank(groups_[a], groups_[b]);
    return entry->second;
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    bool alone = options_.memoise;
    each_link(groups_[g], [&](const LinkName& link) {
      const Users& users = users_of.at(link);
      alone = alone && !users.messages &&
              std::none_of(users.groups.begin(), users.groups.end(), [&](size_t other) {
                return other != g && may_be_at_once(g, other);
              });
    });
    groups_[g].exclusive = alone;
  }
}

}  // namespace testbed
