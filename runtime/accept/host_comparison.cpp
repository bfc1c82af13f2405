#include "runtime/accept/host_comparison.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

constexpr double a_tenth_less = 0.9;

std::optional<double> number(const std::string* text) {
  if (text == nullptr) return std::nullopt;
  double value = 0.0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::string shown(const std::string* value) { return value == nullptr ? "not known" : *value; }

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

HostComparison::HostComparison(const std::vector<std::string>& hosts,
                               const std::vector<Facts>& facts,
                               bool may_share)
    : hosts_(hosts), facts_(facts), may_share_(may_share) {}

std::vector<std::string> HostComparison::distinct_hosts() const {
  std::vector<std::string> distinct;
  for (const std::string& host : hosts_) {
    if (std::find(distinct.begin(), distinct.end(), host) == distinct.end()) {
      distinct.push_back(host);
    }
  }
  return distinct;
}

std::vector<int> HostComparison::ranks_of(const std::string& host) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < hosts_.size(); ++rank) {
    if (hosts_[rank] == host) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<int> HostComparison::all_ranks() const {
  std::vector<int> ranks(facts_.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

const std::string* HostComparison::value(int rank, const std::string& fact) const {
  const Facts& facts = facts_[static_cast<size_t>(rank)];
  const auto found = facts.find(fact);
  return found == facts.end() ? nullptr : &found->second;
}

std::vector<std::string> HostComparison::names(FactGroup group) const {
  std::set<std::string> names;
  for (const Facts& facts : facts_) {
    for (const auto& [name, value] : facts) {
      if (rule_of(name).group == group) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

HostComparison::Findings HostComparison::unequal(const std::string& fact,
                                                 const std::vector<int>& ranks) const {
  std::map<std::string, int> n_ranks;
  for (const int rank : ranks) ++n_ranks[shown(value(rank, fact))];
  if (n_ranks.size() < 2) return {};
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto most = *std::max_element(n_ranks.begin(), n_ranks.end(), fewer);
  const auto n_with_most = std::count_if(
      n_ranks.begin(), n_ranks.end(), [&](const auto& of) { return of.second == most.second; });
  Findings findings;
  for (const int rank : ranks) {
    const std::string mine = shown(value(rank, fact));
    if (n_with_most > 1) {
      findings.push_back(
          {rank, fmt::format("{} is {} here, and there is no majority", fact, mine)});
    } else if (mine != most.first) {
      findings.push_back({rank, fmt::format("{} is {}, the others' {}", fact, mine, most.first)});
    }
  }
  return findings;
}

// The n-th ranks of the hosts among themselves.
HostComparison::Findings HostComparison::unequal_by_seat(const std::string& fact) const {
  std::vector<std::vector<int>> seats;
  for (const std::string& host : distinct_hosts()) {
    const std::vector<int> ranks = ranks_of(host);
    if (seats.size() < ranks.size()) seats.resize(ranks.size());
    for (size_t seat = 0; seat < ranks.size(); ++seat) seats[seat].push_back(ranks[seat]);
  }
  Findings findings;
  for (size_t seat = 0; seat < seats.size(); ++seat) {
    for (Finding& finding : unequal(fact, seats[seat])) {
      finding.what = fmt::format("rank {}, seat {}: {}", finding.rank, seat, finding.what);
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

HostComparison::Findings HostComparison::where(
    const std::string& fact,
    const std::string& wanted,
    const std::function<bool(const std::string&)>& is_bad) const {
  Findings findings;
  for (const int rank : all_ranks()) {
    const std::string* is = value(rank, fact);
    if (is == nullptr || !is_bad(*is)) continue;
    findings.push_back({rank, fmt::format("{} of rank {} is {}, {}", fact, rank, *is, wanted)});
  }
  return findings;
}

HostComparison::Findings HostComparison::below_others(const std::string& fact) const {
  std::vector<double> values;
  for (size_t rank = 0; rank < facts_.size(); ++rank) {
    if (const auto n = number(value(static_cast<int>(rank), fact))) values.push_back(*n);
  }
  if (values.empty()) return {};
  // Of an even number the better one of the middle two: of two hosts, the better.
  std::sort(values.begin(), values.end());
  const double middle = values[values.size() / 2];
  Findings findings;
  for (size_t rank = 0; rank < facts_.size(); ++rank) {
    const auto n = number(value(static_cast<int>(rank), fact));
    if (n && *n >= a_tenth_less * middle) continue;
    findings.push_back({static_cast<int>(rank),
                        fmt::format("{} is {}, the others' {:g}",
                                    fact,
                                    shown(value(static_cast<int>(rank), fact)),
                                    middle)});
  }
  return findings;
}

HostComparison::Findings HostComparison::twins(const std::string& fact) const {
  std::map<std::pair<std::string, std::string>, int> first;  // by host and value
  Findings findings;
  for (size_t r = 0; r < facts_.size(); ++r) {
    const auto rank = static_cast<int>(r);
    const std::string* mine = value(rank, fact);
    if (mine == nullptr) continue;
    const auto [entry, is_new] = first.try_emplace({hosts_[r], *mine}, rank);
    if (is_new) continue;
    findings.push_back(
        {rank, fmt::format("ranks {} and {} both have {} {}", entry->second, rank, fact, *mine)});
  }
  return findings;
}

// The n-th ranks of the hosts, each against that of the first host.
std::vector<std::string> HostComparison::unequal_seats(const std::string& fact) const {
  std::vector<std::string> notes;
  const std::vector<std::string> hosts = distinct_hosts();
  const std::vector<int> of_first = ranks_of(hosts.front());
  for (const std::string& host : hosts) {
    const std::vector<int> ranks = ranks_of(host);
    for (size_t seat = 0; seat < std::min(ranks.size(), of_first.size()); ++seat) {
      const std::string here = shown(value(ranks[seat], fact));
      const std::string there = shown(value(of_first[seat], fact));
      if (here == there) continue;
      notes.push_back(fmt::format("{} of rank {} ({}) is {}, of rank {} ({}) {}",
                                  fact,
                                  of_first[seat],
                                  hosts.front(),
                                  there,
                                  ranks[seat],
                                  host,
                                  here));
      break;  // one a host says it
    }
  }
  return notes;
}

void HostComparison::compare(FactGroup group, CaseResult& result) const {
  Findings findings;
  for (const std::string& fact : names(group)) {
    Findings of_fact;
    switch (rule_of(fact).holds) {
      case FactRule::Holds::equal:
        of_fact = unequal(fact, all_ranks());
        break;
      case FactRule::Holds::like_others:
        of_fact = below_others(fact);
        break;
      case FactRule::Holds::unique:
        of_fact = twins(fact);
        if (!may_share_) break;
        for (const Finding& finding : of_fact) result.notes.push_back(finding.what);
        of_fact.clear();
        break;
      case FactRule::Holds::equal_by_seat:
        of_fact = unequal_by_seat(fact);
        break;
      case FactRule::Holds::zero:
        of_fact = where(fact, "must be 0", [](const std::string& is) {
          return number(&is).value_or(0.0) > 0.0;
        });
        break;
      case FactRule::Holds::no_slowdown:
        of_fact = where(fact, "must be no slowdown", [](const std::string& is) {
          return contains(is, "slowdown");
        });
        break;
      case FactRule::Holds::alike_by_seat:
        for (std::string& note : unequal_seats(fact)) result.notes.push_back(std::move(note));
        break;
      case FactRule::Holds::shown:
        break;
    }
    findings.insert(findings.end(), of_fact.begin(), of_fact.end());
  }
  blame(findings, result);
}

HostComparison::Findings HostComparison::unlike(
    const std::string& fact,
    const std::string& required,
    const std::function<bool(const std::string&)>& holds) const {
  Findings findings;
  for (size_t rank = 0; rank < facts_.size(); ++rank) {
    const std::string* is = value(static_cast<int>(rank), fact);
    if (is != nullptr && holds(*is)) continue;
    findings.push_back({static_cast<int>(rank),
                        fmt::format("{} is {}, required is {}", fact, shown(is), required)});
  }
  return findings;
}

HostComparison::Findings HostComparison::below(const std::string& fact,
                                               std::optional<double> least) const {
  if (!least) return {};
  return unlike(fact, fmt::format("at least {:g}", *least), [&](const std::string& text) {
    return number(&text).value_or(0.0) >= *least;
  });
}

// Processors are counted by their ranks.
HostComparison::Findings HostComparison::without_devices(int required) const {
  const bool counted = !facts_.empty() && facts_.front().count("device.count") > 0;
  const std::string text = std::to_string(required);
  if (!counted) {
    return unlike("ranks_on_host", text, [&](const std::string& is) { return is == text; });
  }
  Findings findings;
  for (const std::string& host : distinct_hosts()) {
    const int n = n_devices(host);
    if (n == required) continue;
    for (const int rank : ranks_of(host)) {
      findings.push_back({rank, fmt::format("{} devices, required is {}", n, required)});
    }
  }
  return findings;
}

// A rank may be shown its own device alone: then the ranks' are counted.
int HostComparison::n_devices(const std::string& host) const {
  int most_seen = 0;
  std::set<std::string> distinct;
  for (const int rank : ranks_of(host)) {
    const double seen = number(value(rank, "device.count")).value_or(0.0);
    most_seen = std::max(most_seen, static_cast<int>(seen));
    if (const std::string* pci = value(rank, "device.pci")) distinct.insert(*pci);
  }
  return std::max(most_seen, static_cast<int>(distinct.size()));
}

void HostComparison::require(FactGroup group,
                             const Requirements& required,
                             CaseResult& result) const {
  Findings findings;
  const auto add = [&findings](const Findings& found) {
    findings.insert(findings.end(), found.begin(), found.end());
  };
  if (group == FactGroup::devices) {
    if (const auto n = required.devices_per_host) add(without_devices(*n));
    if (const auto& name = required.device_name) {
      add(unlike("device.name", *name, [&](const std::string& is) { return contains(is, *name); }));
    }
    if (const auto ecc = required.ecc) {
      const std::string text = *ecc ? "on" : "off";
      add(unlike("device.ecc", text, [&](const std::string& is) { return is == text; }));
    }
  }
  if (group == FactGroup::memory) {
    add(below("device.memory_gb", required.device_memory_gb));
    add(below("memory_available_gb", required.host_memory_gb));
    add(below("dev_shm_free_gb", required.dev_shm_gb));
  }
  if (group == FactGroup::clocks) add(below("device.clock_mhz", required.clock_mhz));
  blame(findings, result);
}

void HostComparison::note_placement(CaseResult& result) const {
  for (size_t rank = 0; rank < facts_.size(); ++rank) {
    const std::string* binding = value(static_cast<int>(rank), "rank.binding");
    const auto threads = number(value(static_cast<int>(rank), "rank.threads"));
    const auto n_cores = binding == nullptr ? std::nullopt : cores_in(*binding);
    if (!threads || !n_cores || *threads <= *n_cores) continue;
    result.notes.push_back(fmt::format("rank {} ({}): {:g} threads on {} core{} ({})",
                                       rank,
                                       hosts_[rank],
                                       *threads,
                                       *n_cores,
                                       *n_cores == 1 ? "" : "s",
                                       *binding));
  }
  note_nics(result);
  size_t per_host = hosts_.size();
  for (const std::string& host : distinct_hosts()) {
    per_host = std::min(per_host, ranks_of(host).size());
  }
  for (size_t first = 0; first + 1 < hosts_.size() && per_host > 1; ++first) {
    if ((first + 1) % per_host == 0 || hosts_[first] == hosts_[first + 1]) continue;
    result.notes.push_back(
        fmt::format("ranks {} and {} are on hosts {} and {}: tensor-parallel groups of {} would "
                    "cross hosts (map ranks by slot: ppr:{}:node)",
                    first,
                    first + 1,
                    hosts_[first],
                    hosts_[first + 1],
                    per_host,
                    per_host));
    break;
  }
}

// Of the first host; where others differ, compare() says so.
void HostComparison::note_nics(CaseResult& result) const {
  std::vector<std::string> nearest;
  for (const int rank : ranks_of(hosts_.front())) {
    const std::string* nics = value(rank, "device.nics");
    if (nics != nullptr) nearest.push_back(fmt::format("rank {}: {}", rank, *nics));
  }
  if (nearest.empty()) return;
  result.notes.push_back(fmt::format(
      "NICs nearest to the devices of {}: {}", hosts_.front(), fmt::join(nearest, "; ")));
}

// One blame a host, with all that was found of it.
void HostComparison::blame(const Findings& findings, CaseResult& result) const {
  for (const std::string& host : distinct_hosts()) {
    std::vector<std::string> texts;
    std::set<int> ranks;
    for (const Finding& finding : findings) {
      if (hosts_[static_cast<size_t>(finding.rank)] != host) continue;
      ranks.insert(finding.rank);
      if (std::find(texts.begin(), texts.end(), finding.what) == texts.end()) {
        texts.push_back(finding.what);
      }
    }
    if (texts.empty()) continue;
    std::string what = fmt::format("{}", fmt::join(texts, "; "));
    result.reason += fmt::format("{}host {}: {}", result.reason.empty() ? "" : "; ", host, what);
    result.status = CaseStatus::failed;
    result.blamed.push_back({.kind = Blame::Kind::host,
                             .ranks = {ranks.begin(), ranks.end()},
                             .host = host,
                             .what = std::move(what)});
  }
}

}  // namespace testbed
