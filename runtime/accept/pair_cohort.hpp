// Which pairs of ranks are worse than the others. Logic only.
#pragma once

#include <map>
#include <set>

#include "runtime/accept/cohort.hpp"
#include "runtime/accept/pair_rounds.hpp"

namespace testbed {

// Of pairs of one scope. A pair misses its cohort if it stands out (clear_outliers) of the pairs,
// or if an end of it does of the ranks, each by the best of its pairs: of few ranks a bad one makes
// half of all pairs bad, among which none stands out.
std::set<RankPair> cohort_misses(const std::map<RankPair, Sampled>& pairs,
                                 double tolerance,
                                 bool more_is_better);

// The same of pairs that were measured one at a time, suspects and good ones: which suspects miss
// what the good ones do by themselves, or, where there are none, one another. together: all pairs
// of the scope when many were measured at a time. A good one that is of a faster kind than most
// counts as fast as most are.
std::set<RankPair> misses_alone(const std::map<RankPair, Sampled>& together,
                                const std::map<RankPair, Sampled>& alone,
                                const std::set<RankPair>& suspects,
                                double tolerance,
                                bool more_is_better);

}  // namespace testbed
