// wall_sentence: one sentence a person can repeat.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/measure/analysis.hpp"

namespace testbed {

namespace {

std::string percent(double share) { return fmt::format("{:.0f} %", share * 100.0); }

std::string memory_clause(const Shares& s) {
  return fmt::format("{} of device time reads weights ({}) and KV ({})",
                     percent(s.memory()),
                     percent(s.weights),
                     percent(s.kv));
}

std::string largest_collective(const PhaseRecord& phase) {
  const auto largest = std::max_element(
      phase.collectives.begin(), phase.collectives.end(), [](const auto& a, const auto& b) {
        return a.exposed_us < b.exposed_us;
      });
  if (largest == phase.collectives.end()) return {};
  return fmt::format(", most of it {} over {} at {} ({}, {})",
                     largest->op,
                     largest->axis,
                     largest->site,
                     largest->algorithm,
                     largest->transport);
}

// Of the axes, the one with most exposed transfer, if it is one that only some splits have.
std::string largest_axis(const PhaseRecord& phase) {
  std::map<std::string, double> exposed_us;
  for (const CollectiveRecord& collective : phase.collectives) {
    exposed_us[collective.axis] += collective.exposed_us;
  }
  const auto largest =
      std::max_element(exposed_us.begin(), exposed_us.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      });
  if (largest == exposed_us.end() || phase.shares.interconnect < 0.01) return {};
  if (largest->first == "cp") return " (most over cp: attention over a split sequence)";
  if (largest->first == "ep") return " (most over ep: tokens to experts and back)";
  return {};
}

// Who kept the others waiting, over all collectives of the phase.
std::string late_rank(const PhaseRecord& phase) {
  const LateRank* worst = nullptr;
  for (const CollectiveRecord& collective : phase.collectives) {
    if (collective.latest.empty()) continue;
    const LateRank& late = collective.latest.front();
    if (worst == nullptr || late.total_us > worst->total_us) worst = &late;
  }
  if (worst == nullptr) return {};
  return fmt::format(", most often for rank {} (last {} times, by {:.0f} us)",
                     worst->rank,
                     worst->count,
                     worst->median_us);
}

std::string bound_clause(const PhaseRecord& phase) {
  const Shares& s = phase.shares;
  if (phase.bound_by == "memory") return "memory: " + memory_clause(s);
  if (phase.bound_by == "compute") {
    return fmt::format("compute: {} of device time is arithmetic at the measured peak",
                       percent(s.compute));
  }
  if (phase.bound_by == "interconnect") {
    return fmt::format("the interconnect: {} of device time is exposed transfer{}{}",
                       percent(s.interconnect),
                       largest_axis(phase),
                       largest_collective(phase));
  }
  if (phase.bound_by == "wait") {
    return fmt::format("waiting: {} of device time ranks wait for one another{}",
                       percent(s.wait),
                       late_rank(phase));
  }
  if (phase.bound_by == "bubble") {
    return fmt::format("the pipeline's bubble: {} of device time a stage has no work",
                       percent(s.bubble));
  }
  return fmt::format(
      "overhead: {} of device time is beyond what its bytes and FLOPs need at the peaks",
      percent(s.overhead));
}

std::string other_clause(const PhaseRecord& phase, int world_size) {
  const Shares& s = phase.shares;
  std::vector<std::string> others;
  if (phase.bound_by != "memory") others.push_back(memory_clause(s));
  if (world_size > 1) {
    if (phase.bound_by != "interconnect") {
      others.push_back(
          fmt::format("the interconnect takes {}{}", percent(s.interconnect), largest_axis(phase)));
    }
    if (phase.bound_by != "wait") others.push_back(fmt::format("waiting {}", percent(s.wait)));
    if (phase.pipeline && phase.bound_by != "bubble") {
      others.push_back(fmt::format("the bubble {}", percent(s.bubble)));
    }
  }
  if (phase.bound_by != "overhead")
    others.push_back(fmt::format("overhead {}", percent(s.overhead)));
  return fmt::format("{}", fmt::join(others, ", "));
}

}  // namespace

std::string wall_sentence(const RunRecord& record) {
  const PhaseRecord* phase = record.phase(Phase::decode);
  if (phase == nullptr && !record.phases.empty()) phase = &record.phases.back();
  if (phase == nullptr) return "No step ran: there is no wall to name.";
  std::string name(phase_name(phase->phase));
  name.front() = static_cast<char>(name.front() - 'a' + 'A');
  std::string sentence = fmt::format("{} is bound by {}; {}.",
                                     name,
                                     bound_clause(*phase),
                                     other_clause(*phase, record.world_size));
  if (phase->bound_by != "wait" && phase->shares.wait > 0.1) {
    sentence += fmt::format(" Ranks wait{}.", late_rank(*phase));
  }
  if (is_oversubscribed(record.run)) {
    sentence +=
        " With more ranks than cores, wire, wait and bubble measure the operating system: they say "
        "nothing of the interconnect.";
  }
  if (phase->cache_resident) {
    sentence += " The working set fits the cache: this says little about memory.";
  } else if (phase->mbu) {
    sentence += fmt::format(" Its reads run at {} of the {}.",
                            percent(*phase->mbu),
                            record.run.simulated ? "memory's peak" : "read loop");
  }
  return sentence;
}

}  // namespace testbed
