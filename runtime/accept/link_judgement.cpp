#include "runtime/accept/link_judgement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "runtime/accept/case_failure.hpp"
#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/figures.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/accept/link_blame.hpp"
#include "runtime/accept/pair_cohort.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/report/acceptance_parts.hpp"

namespace testbed {
namespace {

using acceptance_report::size_text;

// What is held against each other: the same figure of links of the same scope.
std::string cohort_of(const Figure& figure) {
  return figure.key.figure + " " + figure.key.scope.value_or("");
}

// How many times worse a figure is than the good ones of its cohort or, without any, than its gate.
struct Shortfall {
  double factor = 0.0;
  std::string text;
};
Shortfall shortfall_of(const Figure& figure, int64_t n_bytes, const std::vector<double>& good) {
  const FigureKind kind = *figure_kind(figure.key.figure);
  const double value = median(figure.samples);
  std::string text =
      fmt::format("{:.3g} {} {} with {}",
                  value,
                  kind.unit,
                  figure.key.figure == "link.both_ways_gb_s" ? "both ways" : "one way",
                  size_text(n_bytes));
  if (good.empty() && !figure.gate) return {0.0, text};
  const double reference = good.empty() ? figure.gate->expected : median(good);
  text += fmt::format(", {} {:.3g}", good.empty() ? "expected" : "the others", reference);
  return {kind.more_is_better ? reference / value : value / reference, text};
}

std::vector<double> rates_gb_s(int64_t n_bytes, const std::vector<double>& seconds) {
  std::vector<double> rates;
  rates.reserve(seconds.size());
  for (const double s : seconds) rates.push_back(static_cast<double>(n_bytes) / s / 1e9);
  return rates;
}

std::vector<double> microseconds(const std::vector<double>& seconds) {
  std::vector<double> us;
  us.reserve(seconds.size());
  for (const double s : seconds) us.push_back(s * 1e6);
  return us;
}

bool misses_gate(const std::vector<Figure>& figures) {
  return std::any_of(
      figures.begin(), figures.end(), [](const Figure& figure) { return !figure.passed; });
}

using MediansOfCohorts = std::map<std::string, std::vector<double>>;
MediansOfCohorts medians_without(const std::set<RankPair>& bad,
                                 const std::map<RankPair, std::vector<Figure>>& figures) {
  MediansOfCohorts medians;
  for (const auto& [pair, of_pair] : figures) {
    if (bad.count(pair) > 0) continue;
    for (const Figure& figure : of_pair) {
      medians[cohort_of(figure)].push_back(median(figure.samples));
    }
  }
  return medians;
}

std::string names_of(const std::vector<RankPair>& pairs) {
  constexpr size_t most_named = 8;
  std::vector<std::string> names;
  names.reserve(pairs.size());
  for (const RankPair& pair : pairs) names.push_back(fmt::format("{}-{}", pair.low, pair.high));
  if (names.size() <= most_named) return fmt::format("{}", fmt::join(names, ", "));
  const size_t n_more = names.size() - most_named;
  names.resize(most_named);
  return fmt::format("{} and {} more", fmt::join(names, ", "), n_more);
}

std::string blamed_name(const Blame& blame) {
  if (blame.kind == Blame::Kind::host) return "host " + blame.host;
  if (blame.kind == Blame::Kind::link) {
    return fmt::format("link {}-{}", blame.ranks.front(), blame.ranks.back());
  }
  return fmt::format("device of rank {} ({})", blame.ranks.front(), blame.host);
}

std::string text_of(const WrongMessage& wrong) {
  return fmt::format(
      "byte {} of {} from rank {} to rank {} is {:#04x} and was sent as {:#04x} ({} of its bytes "
      "wrong)",
      wrong.bytes.first,
      size_text(wrong.n_bytes),
      wrong.from,
      wrong.to,
      wrong.bytes.is,
      wrong.bytes.should_be,
      wrong.bytes.count);
}

}  // namespace

LinkJudgement::LinkJudgement(const AcceptanceProfile& profile,
                             const std::vector<std::string>& hosts,
                             Measures measures,
                             int64_t n_bytes,
                             bool with_cohort)
    : profile_(profile),
      hosts_(hosts),
      measures_(measures),
      n_bytes_(n_bytes),
      with_cohort_(with_cohort) {}

// Of each pair the one that is in the matrix first. A pair so slow that its messages were shortened
// is held as if they had not been: what takes so long is bytes on their way, not starts, so that
// the longer message would have had the same rate, and its gate is the one that the profile has.
LinkJudgement::FiguresOfPairs LinkJudgement::figures_of(const SamplesOfPairs& samples) const {
  FiguresOfPairs all;
  for (const auto& [pair, of_pair] : samples) {
    const std::vector<int> ranks{pair.low, pair.high};
    const std::string_view scope = scope_of(hosts_, ranks);
    const int64_t n_bytes = of_pair.n_bytes;
    const auto figure = [&](std::string_view name, std::vector<double> values) {
      return judged(profile_, link_key(name, n_bytes_, scope), std::move(values), ranks);
    };
    std::vector<Figure>& figures = all[pair];
    if (measures_ == Measures::latency) {
      figures.push_back(figure("link.one_way_us", microseconds(of_pair.one_way_s)));
    } else {
      figures.push_back(figure("link.one_way_gb_s", rates_gb_s(n_bytes, of_pair.one_way_s)));
      figures.push_back(
          figure("link.both_ways_gb_s", rates_gb_s(2 * n_bytes, of_pair.both_ways_s)));
    }
  }
  return all;
}

RankMatrix LinkJudgement::matrix_of(const FiguresOfPairs& figures) const {
  const size_t n = hosts_.size();
  const bool latency = measures_ == Measures::latency;
  RankMatrix matrix{.title = latency ? "one way" : "one way bandwidth",
                    .unit = latency ? "us" : "GB/s",
                    .more_is_better = !latency,
                    .values = {n, std::vector<std::optional<double>>(n)}};
  for (const auto& [pair, of_pair] : figures) {
    const double value = median(of_pair.front().samples);
    matrix.values[static_cast<size_t>(pair.low)][static_cast<size_t>(pair.high)] = value;
    matrix.values[static_cast<size_t>(pair.high)][static_cast<size_t>(pair.low)] = value;
  }
  return matrix;
}

LinkJudgement::Cohorts LinkJudgement::cohorts_of(const FiguresOfPairs& figures) const {
  Cohorts cohorts;
  for (const auto& [pair, of_pair] : figures) {
    for (const Figure& figure : of_pair) {
      cohorts[cohort_of(figure)][pair] = sampled(figure.samples, more_is_better());
    }
  }
  return cohorts;
}

std::set<RankPair> LinkJudgement::slow_together(const FiguresOfPairs& together) const {
  std::set<RankPair> slow;
  for (const auto& [pair, figures] : together) {
    if (misses_gate(figures)) slow.insert(pair);
  }
  if (!with_cohort_) return slow;
  for (const auto& [name, cohort] : cohorts_of(together)) {
    slow.merge(cohort_misses(cohort, profile_.cohort_tolerance, more_is_better()));
  }
  return slow;
}

std::set<RankPair> LinkJudgement::suspects(const SamplesOfPairs& together) const {
  std::set<RankPair> found = slow_together(figures_of(together));
  for (const auto& [pair, of_pair] : together) {
    if (of_pair.wrong) found.insert(pair);
  }
  return found;
}

std::set<RankPair> LinkJudgement::slow_for_good(const LinkSamples& samples,
                                                const FiguresOfPairs& together,
                                                const FiguresOfPairs& alone) const {
  std::set<RankPair> slow = slow_together(together);
  for (const auto& [pair, figures] : alone) {
    slow.erase(pair);
    if (misses_gate(figures)) slow.insert(pair);
  }
  if (!with_cohort_) return slow;
  const Cohorts all = cohorts_of(together);
  const std::set<RankPair> suspected = suspects(samples.together);
  for (const auto& [name, cohort] : cohorts_of(alone)) {
    slow.merge(
        misses_alone(all.at(name), cohort, suspected, profile_.cohort_tolerance, more_is_better()));
  }
  return slow;
}

void LinkJudgement::conclude(const LinkSamples& samples, CaseResult& result) const {
  const FiguresOfPairs together = figures_of(samples.together);
  const FiguresOfPairs alone = figures_of(samples.alone);
  for (const auto& [pair, figures] : together) {
    const auto again = alone.find(pair);
    const bool is_alone = again != alone.end();
    for (Figure figure : is_alone ? again->second : figures) {
      figure.alone = is_alone;
      result.figures.push_back(std::move(figure));
    }
  }
  result.matrices.push_back(matrix_of(together));
  if (!alone.empty()) {
    result.matrices.push_back(matrix_of(alone));
    result.matrices.back().title += ", one pair at a time";
  }
  judge(result);
  blame_wrong(samples, result);
  blame_slow(samples, together, alone, result);
}

void LinkJudgement::blame_wrong(const LinkSamples& samples, CaseResult& result) const {
  std::map<RankPair, WrongMessage> messages;
  std::set<RankPair> wrong;
  for (const SamplesOfPairs* of_pairs : {&samples.together, &samples.alone}) {
    for (const auto& [pair, of_pair] : *of_pairs) {
      if (!of_pair.wrong) continue;
      messages.try_emplace(pair, *of_pair.wrong);
      wrong.insert(pair);
    }
  }
  if (wrong.empty()) return;
  result.corrupt = true;
  const auto text = [&](const RankPair& pair) { return text_of(messages.at(pair)); };
  const LinkFaults faults = link_faults(hosts_, wrong);
  for (const LinkFault& fault : faults.faults) {
    Blame blame = fault.blame;
    blame.what = fmt::format("{}; {}", text(fault.pairs.front()), fault.blame.what);
    fail(result, fmt::format("{}: {}", blamed_name(blame), text(fault.pairs.front())));
    result.blamed.push_back(std::move(blame));
  }
  if (!faults.undecided.empty()) {
    fail(result,
         fmt::format("bytes were wrong on links {}, and no partner was good ({})",
                     names_of(faults.undecided),
                     text(faults.undecided.front())));
  }
}

void LinkJudgement::blame_slow(const LinkSamples& samples,
                               const FiguresOfPairs& together,
                               const FiguresOfPairs& alone,
                               CaseResult& result) const {
  const std::set<RankPair> bad = slow_for_good(samples, together, alone);
  if (bad.empty()) return;
  const MediansOfCohorts good_together = medians_without(bad, together);
  const MediansOfCohorts good_alone = medians_without(bad, alone);
  const auto text = [&](const std::vector<RankPair>& pairs) {
    std::optional<Shortfall> worst;
    for (const RankPair& pair : pairs) {
      const bool again = alone.count(pair) > 0;
      const MediansOfCohorts& good = again ? good_alone : good_together;
      for (const Figure& figure : (again ? alone : together).at(pair)) {
        const auto others = good.find(cohort_of(figure));
        const Shortfall found =
            shortfall_of(figure,
                         samples.last(pair).n_bytes,
                         others == good.end() ? std::vector<double>() : others->second);
        if (!worst || found.factor > worst->factor) worst = found;
      }
    }
    return worst->text;
  };
  const LinkFaults faults = link_faults(hosts_, bad);
  for (const LinkFault& fault : faults.faults) {
    Blame blame = fault.blame;
    blame.what = fmt::format("{}; {}", text(fault.pairs), fault.blame.what);
    fail(result, fmt::format("{}: {}", blamed_name(blame), text(fault.pairs)));
    result.blamed.push_back(std::move(blame));
  }
  if (!faults.undecided.empty()) {
    fail(result,
         fmt::format("links {} are bad and no partner is good: {}",
                     names_of(faults.undecided),
                     text(faults.undecided)));
  }
}

}  // namespace testbed
