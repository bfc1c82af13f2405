#include "runtime/accept/pair_cohort.hpp"

#include <vector>

namespace testbed {
namespace {

// The keys of those that stand out.
template <typename Key>
std::set<Key> outlying(const std::map<Key, Sampled>& cohort,
                       double tolerance,
                       bool more_is_better) {
  std::vector<Key> keys;
  std::vector<Sampled> samples;
  keys.reserve(cohort.size());
  samples.reserve(cohort.size());
  for (const auto& [key, of_one] : cohort) {
    keys.push_back(key);
    samples.push_back(of_one);
  }
  std::set<Key> found;
  for (const size_t i : clear_outliers(samples, tolerance, more_is_better)) found.insert(keys[i]);
  return found;
}

}  // namespace

std::set<RankPair> cohort_misses(const std::map<RankPair, Sampled>& pairs,
                                 double tolerance,
                                 bool more_is_better) {
  std::set<RankPair> misses = outlying(pairs, tolerance, more_is_better);
  std::map<int, Sampled> best_of;  // by rank
  for (const auto& [pair, of_pair] : pairs) {
    for (const int end : {pair.low, pair.high}) {
      const auto [entry, is_new] = best_of.try_emplace(end, of_pair);
      const double before = entry->second.median;
      const bool better = more_is_better ? of_pair.median > before : of_pair.median < before;
      if (!is_new && better) entry->second = of_pair;
    }
  }
  const std::set<int> bad_ranks = outlying(best_of, tolerance, more_is_better);
  for (const auto& [pair, of_pair] : pairs) {
    if (bad_ranks.count(pair.low) + bad_ranks.count(pair.high) > 0) misses.insert(pair);
  }
  return misses;
}

}  // namespace testbed
