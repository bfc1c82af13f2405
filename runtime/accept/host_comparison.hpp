// What the ranks found out about their hosts (AcceptContext::facts), held against each other and
// against what the profile requires. Logic only.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/accept/acceptance_profile.hpp"
#include "runtime/accept/case.hpp"
#include "runtime/accept/fact_rules.hpp"

namespace testbed {

using Facts = std::map<std::string, std::string>;

class HostComparison {
 public:
  // facts: of every rank [world_size]. may_share: ranks of a host may have the same device.
  HostComparison(const std::vector<std::string>& hosts,
                 const std::vector<Facts>& facts,
                 bool may_share = false);

  // What differs where it must not: the majority is right, and the others are blamed, host by host.
  void compare(FactGroup group, CaseResult& result) const;
  // What the profile requires of each host and its devices. What is required and not known fails.
  void require(FactGroup group, const Requirements& required, CaseResult& result) const;
  // Threads on fewer cores (D19), groups of neighbours that would be on several hosts (D29), and
  // the NICs nearest to each device.
  void note_placement(CaseResult& result) const;

 private:
  // What is wrong at a rank.
  struct Finding {
    int rank;
    std::string what;
  };
  using Findings = std::vector<Finding>;

  std::vector<std::string> names(FactGroup group) const;
  std::vector<int> all_ranks() const;
  std::vector<int> ranks_of(const std::string& host) const;
  std::vector<std::string> distinct_hosts() const;
  const std::string* value(int rank, const std::string& fact) const;
  Findings unequal(const std::string& fact, const std::vector<int>& ranks) const;
  Findings unequal_by_seat(const std::string& fact) const;
  Findings below_others(const std::string& fact) const;
  Findings twins(const std::string& fact) const;
  Findings where(const std::string& fact,
                 const std::string& wanted,
                 const std::function<bool(const std::string&)>& is_bad) const;
  std::vector<std::string> unequal_seats(const std::string& fact) const;
  Findings below(const std::string& fact, std::optional<double> least) const;
  Findings unlike(const std::string& fact,
                  const std::string& required,
                  const std::function<bool(const std::string&)>& holds) const;
  Findings without_devices(int required) const;
  int n_devices(const std::string& host) const;
  void note_nics(CaseResult& result) const;
  void blame(const Findings& findings, CaseResult& result) const;

  const std::vector<std::string>& hosts_;
  const std::vector<Facts>& facts_;
  bool may_share_;
};

}  // namespace testbed
