// Judges what the pairs of ranks measured: figures against the profile and against the links of the
// same scope, wrong bytes, and who is at fault. Logic only, on rank 0.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/accept/acceptance_profile.hpp"
#include "runtime/accept/case.hpp"
#include "runtime/accept/pair_rounds.hpp"
#include "runtime/accept/pair_samples.hpp"

namespace testbed {

class LinkJudgement {
 public:
  enum class Measures : uint8_t { latency, bandwidth };
  // with_cohort: links are held against one another too. What is given outlives it.
  LinkJudgement(const AcceptanceProfile& profile,
                const std::vector<std::string>& hosts,
                Measures measures,
                bool with_cohort);

  // The pairs that miss a gate or their cohort.
  std::set<RankPair> misses(const SamplesOfPairs& samples) const;
  // Figures, matrix, status, reason and blame of the case. bad: the pairs that miss for good.
  void conclude(const SamplesOfPairs& samples,
                const std::set<RankPair>& bad,
                CaseResult& result) const;

 private:
  using FiguresOfPairs = std::map<RankPair, std::vector<Figure>>;
  FiguresOfPairs figures_of(const SamplesOfPairs& samples) const;
  void blame_slow(const FiguresOfPairs& figures,
                  const std::set<RankPair>& bad,
                  CaseResult& result) const;
  void blame_wrong(const SamplesOfPairs& samples, CaseResult& result) const;

  const AcceptanceProfile& profile_;
  const std::vector<std::string>& hosts_;
  Measures measures_;
  bool with_cohort_;
};

}  // namespace testbed
