// Links: every pair of ranks exchanges messages of which every byte is looked at, many pairs at a
// time. A pair that is too slow is measured once more by itself before anyone is blamed.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/link_blame.hpp"
#include "runtime/accept/link_judgement.hpp"
#include "runtime/accept/pair_exchange.hpp"
#include "runtime/accept/rank_values.hpp"
#include "runtime/accept/shared_cores.hpp"
#include "runtime/accept/stage.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/report/acceptance_parts.hpp"

namespace testbed {
namespace {

using acceptance_report::size_text;

constexpr int64_t latency_bytes = 8;
// Of a small message that still has a rate, to beyond the plateau. GPUs' links need longer ones.
constexpr int64_t bandwidth_bytes[] = {int64_t{64} << 10, int64_t{1} << 20, int64_t{16} << 20};
constexpr int64_t gpu_bandwidth_bytes = int64_t{256} << 20;
// A timing is four messages, for which the other ranks wait no longer than the deadline.
double longest_message_s(const AcceptConfig& config) {
  return std::min(1.0, config.timeout_s / 8.0);
}
// By itself a pair gets so many times as many repeats: of a disturbed one some are good. A message
// that takes long is not so easily disturbed, and gets no more.
constexpr int alone_times = 3;
constexpr double undisturbed_s = 0.1;
// Where ranks take turns on cores, a message that does not last for many turns measures the turns.
constexpr int64_t outlasts_turns_bytes = int64_t{16} << 20;

// Enough messages in a timing that reading the clock does not show.
int64_t calls_for(int64_t n_bytes) {
  constexpr int64_t bytes_of_timing = int64_t{1} << 20;
  constexpr int64_t most_calls = 50;
  return std::clamp(bytes_of_timing / n_bytes, int64_t{1}, most_calls);
}

// Pairs by themselves; where still more are bad, it is the fabric as a whole that is slow.
size_t most_repeated(int n_ranks) { return 4 * static_cast<size_t>(n_ranks); }

// Measures suspects and good partners of theirs one by one.
void measure_suspects(const AcceptContext& context,
                      const LinkJudgement& judgement,
                      PairExchange& exchange,
                      LinkSamples& samples,
                      std::vector<std::string>& notes) {
  const std::set<RankPair> chosen =
      pairs_to_repeat(context.hosts, judgement.suspects(samples.together));
  std::vector<RankPair> again(chosen.begin(), chosen.end());
  if (again.size() > most_repeated(context.size)) again.resize(most_repeated(context.size));
  std::vector<int> repeats;
  repeats.reserve(again.size());
  for (const RankPair& pair : again) {
    const bool is_long = median(samples.together.at(pair).one_way_s) > undisturbed_s;
    repeats.push_back((is_long ? 1 : alone_times) * context.config.repeats);
  }
  again = value_of_root(context.control, again);
  repeats = value_of_root(context.control, repeats);
  if (again.empty()) return;
  samples.alone = exchange.measure_alone(again, repeats);
  notes.push_back(
      fmt::format("{} of {} pairs were measured once more, one at a time, and are held by that{}",
                  again.size(),
                  samples.together.size(),
                  again.size() < chosen.size()
                      ? fmt::format("; {} more were to be", chosen.size() - again.size())
                      : ""));
}

std::optional<std::string> shortened(const LinkSamples& samples, int64_t n_bytes) {
  size_t n = 0;
  int64_t least = n_bytes;
  for (const auto& [pair, of_pair] : samples.together) {
    const int64_t n_here = samples.last(pair).n_bytes;
    n += n_here < n_bytes ? 1 : 0;
    least = std::min(least, n_here);
  }
  if (n == 0) return std::nullopt;
  return fmt::format(
      "{} so slow that messages were shortened, to {} at least; the rates are held as those of {}",
      n == 1 ? "1 pair is" : fmt::format("{} pairs are", n),
      size_text(least),
      size_text(n_bytes));
}

class LinksStage final : public Stage {
 public:
  std::string_view name() const override { return "links"; }

  std::vector<PlannedCase> plan(const AcceptPlanInput& input) const override {
    std::vector<PlannedCase> cases{planned_case(input, latency_bytes)};
    for (const int64_t n_bytes : bandwidth_bytes) cases.push_back(planned_case(input, n_bytes));
    if (input.profile.device == "cuda") cases.push_back(planned_case(input, gpu_bandwidth_bytes));
    return cases;
  }

  CaseResult run(const AcceptContext& context, const PlannedCase& planned) override {
    const int64_t n_bytes = planned.numbers.at("bytes");
    const bool shared = cores_are_shared(context);
    const bool with_cohort = !shared || n_bytes >= outlasts_turns_bytes;
    const LinkJudgement judgement(
        context.profile, context.hosts, measures(n_bytes), n_bytes, with_cohort);
    PairExchange exchange(context,
                          {.n_bytes = n_bytes,
                           .n_calls = calls_for(n_bytes),
                           .both_ways = measures(n_bytes) == LinkJudgement::Measures::bandwidth,
                           .repeats = context.config.repeats,
                           .longest_message_s = longest_message_s(context.config),
                           .seed = context.config.seed});
    CaseResult result{.stage = planned.stage, .name = planned.name};
    LinkSamples samples{.together = exchange.measure(pair_rounds(context.size)), .alone = {}};
    measure_suspects(context, judgement, exchange, samples, result.notes);
    if (context.rank != 0) return {};
    judgement.conclude(samples, result);
    if (shared) result.notes.emplace_back(shared_cores_note);
    if (!with_cohort) {
      result.notes.emplace_back(
          "links were not held against one another: such messages are shorter than a core's turns");
    }
    if (const auto note = shortened(samples, n_bytes)) result.notes.push_back(*note);
    return result;
  }

 private:
  static LinkJudgement::Measures measures(int64_t n_bytes) {
    return n_bytes == latency_bytes ? LinkJudgement::Measures::latency
                                    : LinkJudgement::Measures::bandwidth;
  }
  static PlannedCase planned_case(const AcceptPlanInput& input, int64_t n_bytes);
};

// Rounds of pairs at a time; each timing of a pair is one message each way or some, and the bytes
// are made and looked at.
PlannedCase LinksStage::planned_case(const AcceptPlanInput& input, int64_t n_bytes) {
  const auto n_ranks = static_cast<int>(input.hosts.size());
  const bool latency = measures(n_bytes) == LinkJudgement::Measures::latency;
  const int repeats = input.config.repeats;
  constexpr double likely_bytes_per_s = 2e9;
  constexpr double looks_bytes_per_s = 1e9;
  constexpr double meeting_s = 1e-3;  // of all ranks, before and after a timing
  const int n_rounds = n_ranks < 2 ? 0 : n_ranks - 1 + n_ranks % 2;
  const double n_timings = static_cast<double>(n_rounds) * (repeats + 2) * (latency ? 1 : 2);
  const auto timing_bytes = static_cast<double>(2 * n_bytes * calls_for(n_bytes));
  const double timing_s =
      meeting_s + timing_bytes / likely_bytes_per_s + timing_bytes / looks_bytes_per_s;
  // All messages as slow as they may be, and then as many pairs by themselves as there may be.
  const double most_timings =
      n_timings *
      (1.0 + alone_times * static_cast<double>(most_repeated(n_ranks)) / std::max(n_rounds, 1));
  PlannedCase planned{
      .stage = "links",
      .name = fmt::format("{} {}", latency ? "latency" : "bandwidth", size_text(n_bytes)),
      .explanation = fmt::format(
          "Every pair of ranks exchanges messages of {} ({} of {} pairs at a time), {} times after "
          "a warm-up: {}. Every byte that arrives is compared with what was sent. {} is held "
          "against the profile, and against the links of the same scope (within a host, between "
          "hosts). A pair that misses, and one good partner of each of its ends, is measured once "
          "more by itself, up to {} times as often, and held against what the good ones do so; "
          "then a device is blamed if all its links are bad, else the link.",
          size_text(n_bytes),
          n_ranks / 2,
          n_ranks * (n_ranks - 1) / 2,
          repeats,
          latency ? "there and back, halved" : "there and back, and both ways at once",
          latency ? "The time of a message" : "The rate",
          alone_times),
      .estimated_s = n_timings * timing_s,
      .deadline_s = input.config.timeout_s +
                    most_timings * (meeting_s + 4.0 * longest_message_s(input.config))};
  for (const char* figure : latency ? std::vector{"link.one_way_us"}
                                    : std::vector{"link.one_way_gb_s", "link.both_ways_gb_s"}) {
    const std::set<std::string> hosts(input.hosts.begin(), input.hosts.end());
    if (hosts.size() < input.hosts.size()) {
      planned.measures.push_back(link_key(figure, n_bytes, "within-host"));
    }
    if (hosts.size() > 1) planned.measures.push_back(link_key(figure, n_bytes, "between-hosts"));
  }
  planned.sizes = {n_bytes};
  planned.numbers["bytes"] = n_bytes;
  if (n_ranks < 2) planned.skip = "1 rank: no links";
  if (n_bytes > input.config.most_bytes) {
    planned.skip = fmt::format("messages go to {} only ({})",
                               size_text(input.config.most_bytes),
                               input.config.quick ? "--quick" : "--max-bytes");
    planned.measures.clear();  // other sizes of the same figures are
  }
  return planned;
}

}  // namespace

std::unique_ptr<Stage> make_links_stage() { return std::make_unique<LinksStage>(); }

}  // namespace testbed
