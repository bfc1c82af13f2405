// What is at fault when some pairs of ranks exchange badly: a device, a link, a host or what joins
// two hosts. Logic only: which pairs are bad was found before (pair_cohort.hpp, gates.hpp).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/accept/case.hpp"
#include "runtime/accept/pair_rounds.hpp"

namespace testbed {

struct LinkFault {
  Blame blame;                  // what: how it was told, without figures
  std::vector<RankPair> pairs;  // the bad ones that it explains, in order
};

struct LinkFaults {
  std::vector<LinkFault> faults;
  // Bad, and no partner is known to be good by which they could be told: nobody is blamed for them.
  std::vector<RankPair> undecided;
};

// Every pair of ranks has been measured; bad: those that were not good. A rank is at fault if all
// its pairs are bad, also those with ranks that are good elsewhere; a link if both its ends are
// good elsewhere. On several hosts the same is asked of the hosts, by the pairs between them, then
// of each rank by its pairs with other hosts, and by those within its host. Two ranks are one pair:
// the link is blamed, with a word that it might as well be an end.
LinkFaults link_faults(const std::vector<std::string>& hosts, const std::set<RankPair>& bad);

// The bad pairs, and for each end of one a pair with a partner that has fewest bad ones, on the
// same or another host as the pair is: what is measured once more, pair by pair, before anyone is
// blamed.
std::set<RankPair> pairs_to_repeat(const std::vector<std::string>& hosts,
                                   const std::set<RankPair>& bad);

}  // namespace testbed
