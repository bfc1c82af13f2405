#include "runtime/accept/collective_blame.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

// The first call in which a value was wrong, and the ranks of the group that saw it there.
class Sight {
 public:
  Sight(const WrongValues& wrong, const CollectiveValues& values)
      : wrong_(wrong), values_(values), n_(static_cast<int>(wrong.ranks.size())) {
    const WrongCall* first = nullptr;
    for (const std::vector<WrongCall>& calls : wrong.by_rank) {
      if (!calls.empty() && (first == nullptr || calls.front().call < first->call))
        first = &calls.front();
    }
    CHECK(first != nullptr);
    call_ = first->call;
    for (int r = 0; r < n_; ++r) {
      if (const WrongCall* mine = seen_by(r)) seers_.push_back({r, mine});
    }
  }

  CollectiveBlame blame() const {
    CollectiveBlame result{.reason = where(), .blamed = {}};
    switch (wrong_.op) {
      case CommOp::all_to_all:
        blame_pairs(result);
        break;
      case CommOp::reduce_scatter:
        blame_parts_of_sum(result);
        break;
      default:
        blame_copies(result);
    }
    return result;
  }

 private:
  struct Seer {
    int rank;  // in the group
    const WrongCall* call;
  };

  const WrongCall* seen_by(int rank) const {
    for (const WrongCall& call : wrong_.by_rank[static_cast<size_t>(rank)]) {
      if (call.call == call_) return &call;
    }
    return nullptr;
  }
  int world(int rank) const { return wrong_.ranks[static_cast<size_t>(rank)]; }

  std::string where() const {
    const Seer& seer = seers_.front();
    const WrongElement& element = seer.call->first.front();
    size_t n_calls = 0;
    for (const std::vector<WrongCall>& calls : wrong_.by_rank)
      n_calls = std::max(n_calls, calls.size());
    const int64_t checked = wrong_.n_calls.empty()
                                ? 0
                                : *std::max_element(wrong_.n_calls.begin(), wrong_.n_calls.end());
    return fmt::format(
        "wrong values: {} of {} bytes over ranks {{{}}}: rank {}, offset {}: {} in place of {} ({} "
        "of {} elements; {} of {} calls)",
        comm_op_name(wrong_.op),
        seer.call->bytes,
        fmt::join(wrong_.ranks, ","),
        world(seer.rank),
        element.offset,
        values_.number_of(element.is),
        values_.number_of(element.should_be),
        seer.call->n_wrong,
        seer.call->n_elements,
        n_calls,
        checked);
  }

  void add(CollectiveBlame& result,
           Blame::Kind kind,
           std::vector<int> ranks,
           std::string what) const {
    for (int& rank : ranks) rank = world(rank);
    std::sort(ranks.begin(), ranks.end());
    result.blamed.push_back(
        {.kind = kind, .ranks = std::move(ranks), .host = {}, .what = std::move(what)});
  }
  void add_receivers(CollectiveBlame& result) const {
    for (const Seer& seer : seers_) {
      add(result,
          Blame::Kind::rank,
          {seer.rank},
          fmt::format("what it was given by {}: offset {} is wrong here alone",
                      comm_op_name(wrong_.op),
                      seer.call->first.front().offset));
    }
    if (seers_.size() == 1) return;
    for (Blame& blame : result.blamed) blame.what += fmt::format(" or on {} ranks", seers_.size());
  }
  void add_contributor(CollectiveBlame& result, int rank, int64_t offset) const {
    add(result,
        Blame::Kind::rank,
        {rank},
        fmt::format("what it contributed to {}: offset {} of the payload",
                    comm_op_name(wrong_.op),
                    offset));
  }

  // Every rank is given the same; the one whose values they are (a part of an all-gather, a
  // broadcast) has them from the start, and does not see what it sent.
  void blame_copies(CollectiveBlame& result) const {
    const int source = source_of(*seers_.front().call);
    const bool alike = std::all_of(seers_.begin(), seers_.end(), [&](const Seer& seer) {
      return seer.call->n_wrong == seers_.front().call->n_wrong &&
             seer.call->first == seers_.front().call->first;
    });
    const auto n_others = static_cast<size_t>(n_ - (source >= 0 ? 1 : 0));
    const bool of_several = source < 0 && wrong_.op != CommOp::all_reduce;
    if (!alike || of_several || seers_.size() < n_others) {
      add_receivers(result);
      return;
    }
    const int64_t offset = seers_.front().call->first.front().offset;
    if (wrong_.op == CommOp::all_reduce) {
      blame_contribution(result, suspects(values_, call_, 0, seers_.front().call->first));
    } else if (n_others == 1 && seers_.front().rank != source) {
      add(result,
          Blame::Kind::link,
          {source, seers_.front().rank},
          fmt::format("{} from the one to the other: offset {}", comm_op_name(wrong_.op), offset));
    } else {
      add_contributor(result, source, offset);
    }
  }

  // The rank whose values all wrong elements of a copy are; -1: of several, or of a sum.
  int source_of(const WrongCall& call) const {
    if (wrong_.op == CommOp::broadcast) return root_of(call_, n_);
    if (wrong_.op != CommOp::all_gather) return -1;
    const int64_t share = call.n_elements / n_;
    const int64_t source = call.first.front().offset / share;
    for (const WrongElement& element : call.first) {
      if (element.offset / share != source) return -1;
    }
    return static_cast<int>(source);
  }

  // Seen by every rank.
  void blame_contribution(CollectiveBlame& result, const std::vector<int>& suspected) const {
    if (suspected.size() == 1) {
      add_contributor(result, suspected.front(), seers_.front().call->first.front().offset);
      return;
    }
    result.reason += "; the same on every rank";
    if (suspected.empty()) return;
    std::vector<int> ranks;
    ranks.reserve(suspected.size());
    for (const int rank : suspected) ranks.push_back(world(rank));
    result.reason += fmt::format(": contributed by one of the ranks {}", fmt::join(ranks, ", "));
  }

  // Each rank sums a part of its own: who contributed wrongly to all of the wrong ones, if there is
  // but one; else who summed them.
  void blame_parts_of_sum(CollectiveBlame& result) const {
    std::vector<int> common;
    for (size_t i = 0; i < seers_.size(); ++i) {
      const WrongCall& call = *seers_[i].call;
      const std::vector<int> here =
          suspects(values_, call_, seers_[i].rank * call.n_elements, call.first);
      std::vector<int> both;
      std::set_intersection(
          common.begin(), common.end(), here.begin(), here.end(), std::back_inserter(both));
      common = i == 0 ? here : both;
    }
    if (common.size() != 1) {
      add_receivers(result);
      return;
    }
    const Seer& seer = seers_.front();
    add_contributor(result,
                    common.front(),
                    seer.rank * seer.call->n_elements + seer.call->first.front().offset);
  }

  // Each pair exchanges values of its own.
  void blame_pairs(CollectiveBlame& result) const {
    std::set<int> sources;
    for (const Seer& seer : seers_) {
      const int64_t share = seer.call->n_elements / n_;
      for (const WrongElement& element : seer.call->first)
        sources.insert(static_cast<int>(element.offset / share));
    }
    const int source = *sources.begin();
    if (sources.size() > 1 || seers_.front().rank == source) {
      add_receivers(result);
    } else if (seers_.size() > 1) {
      add_contributor(result, source, seers_.front().call->first.front().offset);
    } else {
      add(result,
          Blame::Kind::link,
          {source, seers_.front().rank},
          fmt::format("rows of all_to_all from the one to the other: offset {}",
                      seers_.front().call->first.front().offset));
    }
  }

  const WrongValues& wrong_;
  const CollectiveValues& values_;
  int n_;
  int64_t call_ = 0;
  std::vector<Seer> seers_;
};

// Whether the element is the sum with this rank's contribution replaced: by nothing, by that of the
// call before, or by itself with one bit flipped. Compared as the type rounds it.
bool explains(const CollectiveValues& values,
              int rank,
              int64_t call,
              int64_t offset,
              const WrongElement& element) {
  const int64_t mine = values.value(rank, call, offset);
  const auto others = static_cast<double>(values.sum(call, offset) - mine);
  const auto gives = [&](double contribution) {
    return values.bits_of(others + contribution) == element.is;
  };
  if (gives(0.0)) return true;
  if (call > 0 && gives(static_cast<double>(values.value(rank, call - 1, offset)))) return true;
  const uint32_t bits = values.bits_of(static_cast<double>(mine));
  for (int bit = 0; bit < values.n_bits(); ++bit) {
    if (gives(values.number_of(bits ^ (uint32_t{1} << bit)))) return true;
  }
  return false;
}

}  // namespace

std::vector<int> suspects(const CollectiveValues& values,
                          int64_t call,
                          int64_t offset0,
                          const std::vector<WrongElement>& elements) {
  std::vector<int> found;
  for (int rank = 0; rank < values.n_ranks(); ++rank) {
    const bool all =
        std::all_of(elements.begin(), elements.end(), [&](const WrongElement& element) {
          return explains(values, rank, call, offset0 + element.offset, element);
        });
    if (all) found.push_back(rank);
  }
  return found;
}

CollectiveBlame blame_for(const WrongValues& wrong, const CollectiveValues& values) {
  return Sight(wrong, values).blame();
}

}  // namespace testbed
