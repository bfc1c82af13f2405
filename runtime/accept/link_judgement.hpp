// Judges what the pairs of ranks measured: figures against the profile and against the links of the
// same scope, wrong bytes, and who is at fault. Logic only, on rank 0.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/accept/acceptance_profile.hpp"
#include "runtime/accept/case.hpp"
#include "runtime/accept/cohort.hpp"
#include "runtime/accept/pair_rounds.hpp"
#include "runtime/accept/pair_samples.hpp"

namespace testbed {

class LinkJudgement {
 public:
  enum class Measures : uint8_t { latency, bandwidth };
  // n_bytes: of a message, as planned. with_cohort: links are held against one another too. What is
  // given outlives it.
  LinkJudgement(const AcceptanceProfile& profile,
                const std::vector<std::string>& hosts,
                Measures measures,
                int64_t n_bytes,
                bool with_cohort);

  // The pairs that miss a gate or their cohort when many are measured at a time, or were given
  // wrong bytes.
  std::set<RankPair> suspects(const SamplesOfPairs& together) const;
  // Figures, matrices, status, reason and blame of the case. Who was measured once more is held by
  // that: against the gates, and against the good ones among them.
  void conclude(const LinkSamples& samples, CaseResult& result) const;

 private:
  using FiguresOfPairs = std::map<RankPair, std::vector<Figure>>;
  using Cohorts = std::map<std::string, std::map<RankPair, Sampled>>;
  FiguresOfPairs figures_of(const SamplesOfPairs& samples) const;
  RankMatrix matrix_of(const FiguresOfPairs& figures) const;
  Cohorts cohorts_of(const FiguresOfPairs& figures) const;
  std::set<RankPair> slow_together(const FiguresOfPairs& together) const;
  std::set<RankPair> slow_for_good(const LinkSamples& samples,
                                   const FiguresOfPairs& together,
                                   const FiguresOfPairs& alone) const;
  void blame_slow(const LinkSamples& samples,
                  const FiguresOfPairs& together,
                  const FiguresOfPairs& alone,
                  CaseResult& result) const;
  void blame_wrong(const LinkSamples& samples, CaseResult& result) const;
  bool more_is_better() const { return measures_ == Measures::bandwidth; }

  const AcceptanceProfile& profile_;
  const std::vector<std::string>& hosts_;
  Measures measures_;
  int64_t n_bytes_;
  bool with_cohort_;
};

}  // namespace testbed
