#include "runtime/accept/pair_cohort.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/measure/statistics.hpp"

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

// As clear_outliers has it, but of one against others of which few are enough.
bool is_clearly_worse(const Sampled& one,
                      const std::vector<Sampled>& good,
                      double tolerance,
                      bool more_is_better) {
  std::vector<double> medians;
  std::vector<double> worsts;
  medians.reserve(good.size());
  worsts.reserve(good.size());
  for (const Sampled& of_one : good) {
    medians.push_back(of_one.median);
    worsts.push_back(of_one.worst);
  }
  const double usual = median(medians);
  const double usual_worst = median(worsts);
  std::vector<double> deviations = medians;
  for (double& deviation : deviations) deviation = std::abs(deviation - usual);
  const double allowed = std::max(median(deviations), tolerance * usual);
  if (more_is_better) return usual - one.median > allowed && one.best < usual_worst;
  return one.median - usual > allowed && one.best > usual_worst;
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

std::set<RankPair> misses_alone(const std::map<RankPair, Sampled>& together,
                                const std::map<RankPair, Sampled>& alone,
                                const std::set<RankPair>& suspects,
                                double tolerance,
                                bool more_is_better) {
  std::vector<double> medians;
  medians.reserve(together.size());
  for (const auto& [pair, of_pair] : together) medians.push_back(of_pair.median);
  std::vector<Sampled> good;
  good.reserve(alone.size());
  for (const auto& [pair, of_pair] : alone) {
    if (suspects.count(pair) > 0) continue;
    const double as_most_are = median(medians) / together.at(pair).median;
    const double factor = more_is_better ? std::min(1.0, as_most_are) : std::max(1.0, as_most_are);
    good.push_back({factor * of_pair.median, factor * of_pair.best, factor * of_pair.worst});
  }
  if (good.empty()) return cohort_misses(alone, tolerance, more_is_better);
  std::set<RankPair> misses;
  for (const auto& [pair, of_pair] : alone) {
    if (suspects.count(pair) > 0 && is_clearly_worse(of_pair, good, tolerance, more_is_better)) {
      misses.insert(pair);
    }
  }
  return misses;
}

}  // namespace testbed
