#include "runtime/accept/link_blame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

namespace testbed {
namespace {

using Holds = std::function<bool(const RankPair&)>;

// Of nodes (ranks, or hosts) joined by edges, each of which is good or bad.
struct Culprits {
  std::set<int> nodes;
  std::set<RankPair> edges;
  std::set<RankPair> undecided;
};

Culprits culprits_of(const std::map<RankPair, bool>& is_bad_edge) {
  std::map<int, int> n_good;
  std::map<int, int> n_bad;
  for (const auto& [edge, is_bad] : is_bad_edge) {
    for (const int end : {edge.low, edge.high}) ++(is_bad ? n_bad : n_good)[end];
  }
  Culprits found;
  for (const auto& [edge, is_bad] : is_bad_edge) {
    if (!is_bad) continue;
    for (const int end : {edge.low, edge.high}) {
      // A node with a single edge is not told from it.
      const bool all_bad = n_good[end] == 0 && n_bad[end] > 1;
      if (all_bad && n_good[edge.other(end)] > 0) found.nodes.insert(end);
    }
  }
  for (const auto& [edge, is_bad] : is_bad_edge) {
    if (!is_bad || found.nodes.count(edge.low) > 0 || found.nodes.count(edge.high) > 0) continue;
    const bool good_elsewhere = n_good[edge.low] > 0 && n_good[edge.high] > 0;
    (good_elsewhere || is_bad_edge.size() == 1 ? found.edges : found.undecided).insert(edge);
  }
  return found;
}

// Takes the faults out of the bad pairs level by level: whole devices, hosts, a rank's ways out of
// its host, its ways within it.
class Search {
 public:
  Search(const std::vector<std::string>& hosts, const std::set<RankPair>& bad)
      : hosts_(hosts), bad_(bad) {
    host_of_.reserve(hosts.size());
    for (const std::string& host : hosts) {
      const auto known = std::find(host_names_.begin(), host_names_.end(), host);
      host_of_.push_back(static_cast<int>(known - host_names_.begin()));
      if (known == host_names_.end()) host_names_.push_back(host);
    }
  }

  LinkFaults run() {
    const auto any = [](const RankPair&) { return true; };
    const Culprits of_all = culprits_of(pairs_left(any));
    for (const int rank : of_all.nodes) blame_device(rank, any, "links");
    if (n_hosts() == 1 || host_names_.size() == hosts_.size()) {
      blame_links(of_all);
      return std::move(result_);
    }
    blame_hosts();
    const auto between = [this](const RankPair& pair) { return !is_within_host(pair); };
    const Culprits across = culprits_of(pairs_left(between));
    for (const int rank : across.nodes) blame_device(rank, between, "links to other hosts");
    blame_links(across);
    for (int host = 0; host < n_hosts(); ++host) blame_within(host);
    return std::move(result_);
  }

 private:
  int n_hosts() const { return static_cast<int>(host_names_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  const std::string& name_of_host(int host) const { return host_names_[static_cast<size_t>(host)]; }
  bool is_within_host(const RankPair& pair) const {
    return host_of(pair.low) == host_of(pair.high);
  }

  // Whether they are bad, of the pairs that no fault explains yet.
  std::map<RankPair, bool> pairs_left(const Holds& is_part) const {
    std::map<RankPair, bool> left;
    const auto n = static_cast<int>(hosts_.size());
    for (int low = 0; low < n; ++low) {
      for (int high = low + 1; high < n; ++high) {
        const RankPair pair{low, high};
        if (explained_.count(pair) == 0 && is_part(pair)) left[pair] = bad_.count(pair) > 0;
      }
    }
    return left;
  }
  std::vector<RankPair> bad_left(const Holds& is_part) const {
    std::vector<RankPair> left;
    for (const auto& [pair, is_bad] : pairs_left(is_part)) {
      if (is_bad) left.push_back(pair);
    }
    return left;
  }

  void blame(Blame::Kind kind, std::vector<int> ranks, std::string what, std::vector<RankPair> of) {
    explained_.insert(of.begin(), of.end());
    std::string host = hosts_[static_cast<size_t>(ranks.front())];
    result_.faults.push_back({.blame = {.kind = kind,
                                        .ranks = std::move(ranks),
                                        .host = std::move(host),
                                        .what = std::move(what)},
                              .pairs = std::move(of)});
  }

  void blame_device(int rank, const Holds& is_part, std::string_view links) {
    std::vector<RankPair> pairs =
        bad_left([&](const RankPair& pair) { return pair.holds(rank) && is_part(pair); });
    const bool alone =
        n_hosts() > 1 && std::count(host_of_.begin(), host_of_.end(), host_of(rank)) == 1;
    std::string what =
        fmt::format("all its {} {} are bad, also those to ranks that are good elsewhere{}",
                    pairs.size(),
                    links,
                    alone ? " (alone on its host: or that host's network)" : "");
    blame(Blame::Kind::device, {rank}, std::move(what), std::move(pairs));
  }

  void blame_links(const Culprits& culprits) {
    for (const RankPair& pair : culprits.edges) {
      blame(Blame::Kind::link,
            {pair.low, pair.high},
            hosts_.size() == 2 ? "the only pair: the link and its ends cannot be told apart"
                               : "both its ends are good elsewhere",
            {pair});
    }
    leave_undecided({culprits.undecided.begin(), culprits.undecided.end()});
  }

  void leave_undecided(const std::vector<RankPair>& pairs) {
    explained_.insert(pairs.begin(), pairs.end());
    result_.undecided.insert(result_.undecided.end(), pairs.begin(), pairs.end());
  }

  // By what is between them; two hosts are joined badly if all their pairs are bad.
  void blame_hosts() {
    std::map<RankPair, bool> all_bad;
    for (const auto& [pair, is_bad] : pairs_left([](const RankPair&) { return true; })) {
      if (is_within_host(pair)) continue;
      const RankPair joined = pair_of(host_of(pair.low), host_of(pair.high));
      const auto [entry, is_new] = all_bad.try_emplace(joined, is_bad);
      if (!is_new) entry->second = entry->second && is_bad;
    }
    const Culprits culprits = culprits_of(all_bad);
    const auto pairs_of = [this](const Holds& is_part) {
      return bad_left([&](const RankPair& pair) {
        return !is_within_host(pair) && is_part(pair_of(host_of(pair.low), host_of(pair.high)));
      });
    };
    for (const int host : culprits.nodes) {
      blame(Blame::Kind::host,
            ranks_of(host),
            "its links to all other hosts are bad, also to hosts that are good elsewhere",
            pairs_of([&](const RankPair& joined) { return joined.holds(host); }));
    }
    for (const RankPair& joined : culprits.edges) {
      std::vector<RankPair> pairs =
          pairs_of([&](const RankPair& other) { return other == joined; });
      const RankPair first = pairs.front();
      std::string what = fmt::format("all {} links between hosts {} and {} are bad, {}",
                                     pairs.size(),
                                     name_of_host(joined.low),
                                     name_of_host(joined.high),
                                     n_hosts() == 2 ? "what joins them or the network of either"
                                                    : "both hosts are good elsewhere");
      blame(Blame::Kind::link, {first.low, first.high}, std::move(what), std::move(pairs));
    }
    for (const RankPair& joined : culprits.undecided) {
      leave_undecided(pairs_of([&](const RankPair& other) { return other == joined; }));
    }
  }

  void blame_within(int host) {
    const auto within = [&](const RankPair& pair) {
      return host_of(pair.low) == host && host_of(pair.high) == host;
    };
    Culprits culprits = culprits_of(pairs_left(within));
    for (const int rank : culprits.nodes) blame_device(rank, within, "links within its host");
    if (!culprits.undecided.empty()) {
      blame(Blame::Kind::host,
            ranks_of(host),
            "all links within it are bad",
            {culprits.undecided.begin(), culprits.undecided.end()});
      culprits.undecided.clear();
    }
    blame_links(culprits);
  }

  std::vector<int> ranks_of(int host) const {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < host_of_.size(); ++rank) {
      if (host_of_[rank] == host) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  const std::vector<std::string>& hosts_;
  const std::set<RankPair>& bad_;
  std::vector<std::string> host_names_;
  std::vector<int> host_of_;      // [n_ranks]
  std::set<RankPair> explained_;  // or left undecided
  LinkFaults result_;
};

}  // namespace

LinkFaults link_faults(const std::vector<std::string>& hosts, const std::set<RankPair>& bad) {
  return Search(hosts, bad).run();
}

std::set<RankPair> pairs_to_repeat(const std::vector<std::string>& hosts,
                                   const std::set<RankPair>& bad) {
  std::map<int, int> n_bad;
  for (const RankPair& pair : bad) {
    for (const int end : {pair.low, pair.high}) ++n_bad[end];
  }
  std::set<RankPair> repeated = bad;
  const auto n = static_cast<int>(hosts.size());
  const auto within = [&hosts](const RankPair& pair) {
    return hosts[static_cast<size_t>(pair.low)] == hosts[static_cast<size_t>(pair.high)];
  };
  for (const RankPair& pair : bad) {
    for (const int end : {pair.low, pair.high}) {
      std::optional<int> best;
      for (int partner = 0; partner < n; ++partner) {
        if (partner == end) continue;
        const RankPair with = pair_of(end, partner);
        if (bad.count(with) > 0 || within(with) != within(pair)) continue;
        if (!best || n_bad[partner] < n_bad[*best]) best = partner;
      }
      if (best) repeated.insert(pair_of(end, *best));
    }
  }
  return repeated;
}

}  // namespace testbed
