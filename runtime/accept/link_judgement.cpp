#include "runtime/accept/link_judgement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

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
Shortfall shortfall_of(const Figure& figure, const std::vector<double>& good) {
  const FigureKind kind = *figure_kind(figure.key.figure);
  const double value = median(figure.samples);
  std::string text =
      fmt::format("{:.3g} {} {} with {}",
                  value,
                  kind.unit,
                  figure.key.figure == "link.both_ways_gb_s" ? "both ways" : "one way",
                  size_text(figure.key.bytes.value_or(0)));
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

// Several faults are one reason.
void fail(CaseResult& result, const std::string& reason) {
  if (result.status == CaseStatus::passed) result.reason.clear();
  result.status = CaseStatus::failed;
  result.reason += (result.reason.empty() ? "" : "; ") + reason;
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

std::string text_of(const WrongMessage& wrong, int64_t n_bytes) {
  return fmt::format(
      "byte {} of {} from rank {} to rank {} is {:#04x} and was sent as {:#04x} ({} of its bytes "
      "wrong)",
      wrong.bytes.first,
      size_text(n_bytes),
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
                             bool with_cohort)
    : profile_(profile), hosts_(hosts), measures_(measures), with_cohort_(with_cohort) {}

// Of each pair the one that is in the matrix first.
LinkJudgement::FiguresOfPairs LinkJudgement::figures_of(const SamplesOfPairs& samples) const {
  FiguresOfPairs all;
  for (const auto& [pair, of_pair] : samples) {
    const std::vector<int> ranks{pair.low, pair.high};
    const std::string_view scope = scope_of(hosts_, ranks);
    const int64_t n_bytes = of_pair.n_bytes;
    const auto figure = [&](std::string_view name, std::vector<double> values) {
      return judged(profile_, link_key(name, n_bytes, scope), std::move(values), ranks);
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

std::set<RankPair> LinkJudgement::misses(const SamplesOfPairs& samples) const {
  std::set<RankPair> missing;
  std::map<std::string, std::map<RankPair, Sampled>> cohorts;
  const bool more_is_better = measures_ == Measures::bandwidth;
  for (const auto& [pair, figures] : figures_of(samples)) {
    for (const Figure& figure : figures) {
      if (!figure.passed) missing.insert(pair);
      cohorts[cohort_of(figure)][pair] = sampled(figure.samples, more_is_better);
    }
  }
  if (!with_cohort_) return missing;
  for (const auto& [name, cohort] : cohorts) {
    missing.merge(cohort_misses(cohort, profile_.cohort_tolerance, more_is_better));
  }
  return missing;
}

void LinkJudgement::conclude(const SamplesOfPairs& samples,
                             const std::set<RankPair>& bad,
                             CaseResult& result) const {
  const size_t n = hosts_.size();
  const bool latency = measures_ == Measures::latency;
  RankMatrix matrix{.title = latency ? "one way" : "one way bandwidth",
                    .unit = latency ? "us" : "GB/s",
                    .more_is_better = !latency,
                    .values = {n, std::vector<std::optional<double>>(n)}};
  const FiguresOfPairs all = figures_of(samples);
  for (const auto& [pair, figures] : all) {
    const double value = median(figures.front().samples);
    matrix.values[static_cast<size_t>(pair.low)][static_cast<size_t>(pair.high)] = value;
    matrix.values[static_cast<size_t>(pair.high)][static_cast<size_t>(pair.low)] = value;
    result.figures.insert(result.figures.end(), figures.begin(), figures.end());
  }
  result.matrices.push_back(std::move(matrix));
  judge(result);
  blame_wrong(samples, result);
  blame_slow(all, bad, result);
}

void LinkJudgement::blame_wrong(const SamplesOfPairs& samples, CaseResult& result) const {
  std::set<RankPair> wrong;
  for (const auto& [pair, of_pair] : samples) {
    if (of_pair.wrong) wrong.insert(pair);
  }
  if (wrong.empty()) return;
  result.corrupt = true;
  const auto text = [&](const RankPair& pair) {
    const PairSamples& of_pair = samples.at(pair);
    return text_of(*of_pair.wrong, of_pair.n_bytes);
  };
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

void LinkJudgement::blame_slow(const FiguresOfPairs& figures,
                               const std::set<RankPair>& bad,
                               CaseResult& result) const {
  if (bad.empty()) return;
  std::map<std::string, std::vector<double>> of_good;  // by cohort
  for (const auto& [pair, of_pair] : figures) {
    if (bad.count(pair) > 0) continue;
    for (const Figure& figure : of_pair)
      of_good[cohort_of(figure)].push_back(median(figure.samples));
  }
  const auto text = [&](const std::vector<RankPair>& pairs) {
    std::optional<Shortfall> worst;
    for (const RankPair& pair : pairs) {
      for (const Figure& figure : figures.at(pair)) {
        const Shortfall found = shortfall_of(figure, of_good[cohort_of(figure)]);
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
