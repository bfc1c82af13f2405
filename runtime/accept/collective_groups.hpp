// Which ranks an acceptance puts into groups: of 2, 4, 8 and all, within a host and between hosts.
#pragma once

#include <string>
#include <vector>

namespace testbed {

// Groups of one size and placement: every rank that can be is in at least one of them.
struct GroupSet {
  int size = 1;
  std::string scope;  // scope_of() each (figure_keys.hpp)
  // [turn][group][size] world ranks, ascending. The groups of a turn share no host, so that none
  // measures another's traffic; the turns follow one another.
  std::vector<std::vector<std::vector<int>>> turns;
};

// hosts: of every rank of the world. Small groups first, those within a host before those between
// hosts; the last is the one of all ranks. A group between hosts has equally many ranks on each of
// as many hosts as can be.
std::vector<GroupSet> group_sets(const std::vector<std::string>& hosts);

}  // namespace testbed
