#include "runtime/accept/divergence.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

using What = ResidualMark::What;

// What one rank held at a place in one repeat.
struct Cell {
  int repeat;
  int rank;
  uint64_t hash;
};

std::string part_name(const ResidualMark& place) {
  switch (place.site) {
    case Site::embedding:
      return "the embedding";
    case Site::head:
      return "the head";
    case Site::attention:
      return fmt::format("attention of layer {}", place.layer);
    case Site::experts:
      return fmt::format("the experts of layer {}", place.layer);
    default:
      return fmt::format("the MLP of layer {}", place.layer);
  }
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

// One place at which cells that must be alike are not.
class Place {
 public:
  Place(const MarkedRuns& runs, const ResidualMark& place, const std::vector<Cell>& cells)
      : runs_(runs), place_(place), cells_(cells) {
    std::map<uint64_t, int> votes;
    for (const Cell& cell : cells) ++votes[cell.hash];
    const auto by_votes = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto most = std::max_element(votes.begin(), votes.end(), by_votes);
    majority_ = most->first;
    is_tie_ = std::any_of(votes.begin(), votes.end(), [&](const auto& vote) {
      return vote.first != most->first && vote.second == most->second;
    });
  }

  Divergence divergence() const {
    Divergence result;
    if (is_tie_) {
      result.reason = fmt::format("{} differ {}; which is wrong has no majority",
                                  ranks_text(ranks_of([](const Cell&) { return true; })),
                                  where());
      return result;
    }
    const std::vector<int> ranks =
        ranks_of([&](const Cell& cell) { return cell.hash != majority_; });
    if (place_.what == What::ids || is_whole_group(ranks)) {
      blame_group(result, ranks);
    } else {
      for (const int rank : ranks) add(result, rank, what() + when());
      result.reason = fmt::format("wrong values: {}: {}{}", ranks_text(ranks), what(), when());
    }
    return result;
  }

 private:
  template <typename Is>
  std::vector<int> ranks_of(const Is& is) const {
    std::set<int> ranks;
    for (const Cell& cell : cells_) {
      if (is(cell)) ranks.insert(cell.rank);
    }
    return {ranks.begin(), ranks.end()};
  }

  int n_repeats() const { return static_cast<int>(runs_.hashes.size()); }

  // A sum that all ranks of a tp group got, or the tokens that their head chose, are of all of
  // them: what each had computed by itself until then was right.
  bool is_whole_group(const std::vector<int>& ranks) const {
    return runs_.mesh.tp > 1 && place_.what == What::sum &&
           ranks == runs_.mesh.group(ranks.front(), Axis::tp);
  }

  void blame_group(Divergence& result, const std::vector<int>& ranks) const {
    const std::string what_happened =
        place_.what == What::ids
            ? fmt::format("chose other tokens for step {}: the head, or how ids are passed on",
                          place_.step)
            : fmt::format("the all-reduce of {} gave all of its ranks a wrong sum",
                          part_name(place_));
    result.reason = fmt::format("wrong values: {}: {}{}", ranks_text(ranks), what_happened, when());
    if (ranks.size() == 1) {
      add(result, ranks.front(), what_happened + when());
      return;
    }
    result.blamed.push_back(
        {.kind = Blame::Kind::layer, .ranks = ranks, .host = {}, .what = what_happened + when()});
  }

  void add(Divergence& result, int rank, std::string what) const {
    const bool of_device = place_.what == What::partial || runs_.mesh.tp == 1;
    result.blamed.push_back({.kind = of_device ? Blame::Kind::device : Blame::Kind::rank,
                             .ranks = {rank},
                             .host = {},
                             .what = std::move(what)});
  }

  // What went wrong on a rank.
  std::string what() const {
    if (place_.what == What::partial || runs_.mesh.tp == 1)
      return fmt::format("its device computes {} wrongly", part_name(place_));
    return fmt::format("the all-reduce of {} gave it wrong values", part_name(place_));
  }

  std::string where() const {
    if (place_.what == What::ids) return fmt::format("in the tokens of step {}", place_.step);
    return fmt::format("{} {}, step {}",
                       place_.what == What::partial ? "in" : "after the sum of",
                       part_name(place_),
                       place_.step);
  }

  // ", step 3 of repeat 2 of 3: once"; memory that has changed stays wrong.
  std::string when() const {
    std::set<int> repeats;
    for (const Cell& cell : cells_) {
      if (cell.hash != majority_) repeats.insert(cell.repeat + 1);
    }
    const bool every_time = static_cast<int>(repeats.size()) == n_repeats();
    const bool to_the_end = !every_time && repeats.size() > 1 && *repeats.rbegin() == n_repeats();
    return fmt::format(" (step {}, repeat {} of {}{})",
                       place_.step,
                       fmt::join(repeats, ", "),
                       n_repeats(),
                       every_time   ? ": every time"
                       : to_the_end ? ": from then on, as memory that has changed would"
                                    : "");
  }

  const MarkedRuns& runs_;
  const ResidualMark& place_;
  const std::vector<Cell>& cells_;
  uint64_t majority_ = 0;
  bool is_tie_ = false;
};

// Replicas whose devices are the same, tp rank by tp rank: [class] their dp indices.
std::vector<std::vector<int>> classes_of(const MarkedRuns& runs) {
  std::map<std::vector<std::string>, std::vector<int>> classes;
  for (int dp = 0; dp < runs.mesh.dp; ++dp) {
    std::vector<std::string> devices;
    devices.reserve(static_cast<size_t>(runs.mesh.tp));
    for (int tp = 0; tp < runs.mesh.tp; ++tp) {
      devices.push_back(runs.devices[static_cast<size_t>(runs.mesh.rank({.tp = tp, .dp = dp}))]);
    }
    classes[devices].push_back(dp);
  }
  std::vector<std::vector<int>> list;
  list.reserve(classes.size());
  for (const auto& [devices, replicas] : classes) list.push_back(replicas);
  return list;
}

// The cells that must be alike at a place: of partial sums those of one tp rank, else all.
std::vector<std::vector<Cell>> electorates(const MarkedRuns& runs,
                                           size_t mark,
                                           const std::vector<int>& replicas) {
  const bool by_tp_rank = runs.places[mark].what == What::partial;
  std::vector<std::vector<Cell>> all(by_tp_rank ? static_cast<size_t>(runs.mesh.tp) : 1);
  for (int repeat = 0; repeat < static_cast<int>(runs.hashes.size()); ++repeat) {
    for (const int dp : replicas) {
      for (int tp = 0; tp < runs.mesh.tp; ++tp) {
        const int rank = runs.mesh.rank({.tp = tp, .dp = dp});
        const uint64_t hash =
            runs.hashes[static_cast<size_t>(repeat)][static_cast<size_t>(rank)][mark];
        all[by_tp_rank ? static_cast<size_t>(tp) : 0].push_back({repeat, rank, hash});
      }
    }
  }
  return all;
}

bool are_alike(const std::vector<Cell>& cells) {
  return std::all_of(cells.begin(), cells.end(), [&](const Cell& cell) {
    return cell.hash == cells.front().hash;
  });
}

}  // namespace

std::optional<Divergence> first_divergence(const MarkedRuns& runs) {
  CHECK(runs.mesh.cp == 1 && runs.mesh.pp == 1 && !runs.hashes.empty());
  const std::vector<std::vector<int>> classes = classes_of(runs);
  for (size_t mark = 0; mark < runs.places.size(); ++mark) {
    std::optional<Divergence> found;
    for (const std::vector<int>& replicas : classes) {
      for (const std::vector<Cell>& cells : electorates(runs, mark, replicas)) {
        if (are_alike(cells)) continue;
        Divergence here = Place(runs, runs.places[mark], cells).divergence();
        if (!found) found = Divergence{.reason = here.reason, .blamed = {}};
        std::move(here.blamed.begin(), here.blamed.end(), std::back_inserter(found->blamed));
      }
    }
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace testbed
