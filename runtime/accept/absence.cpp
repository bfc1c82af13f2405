#include "runtime/accept/absence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "parallel/comm/communicator.hpp"

namespace testbed {
namespace {

using Answers = std::vector<RankAnswer>;

std::vector<Blame> blame_ranks(const Answers& answers,
                               const std::vector<std::string>& hosts,
                               const std::function<bool(const RankAnswer&)>& is_at_fault) {
  std::vector<Blame> blamed;
  for (const RankAnswer& answer : answers) {
    if (!is_at_fault(answer)) continue;
    blamed.push_back({.kind = Blame::Kind::rank,
                      .ranks = {answer.rank},
                      .host = hosts[static_cast<size_t>(answer.rank)],
                      .what = answer.error});
  }
  return blamed;
}

bool has_own_error(const RankAnswer& answer) { return !answer.error.empty() && answer.is_own; }

// A rank without an error has not waited in vain, whatever it awaits now.
bool waits(const RankAnswer& answer) { return !answer.error.empty() && answer.awaited.has_value(); }

enum class Sent : uint8_t { yes, no, unknown };

// Whether the peer of `waiting` has sent what that one waits for.
Sent has_sent(const RankAnswer& peer, const RankAnswer& waiting) {
  const Message& awaited = *waiting.awaited;
  // It waits to be rid of a message of its own: the other one has not come for it, or says itself
  // that it waits.
  if (static_cast<CommOp>(awaited.op) != CommOp::recv) return Sent::no;
  if (!peer.given) return Sent::no;
  Message as_sent = awaited;
  as_sent.op = static_cast<uint8_t>(CommOp::send);
  as_sent.peer = waiting.rank;
  as_sent.sequence = peer.given->sequence;
  if (*peer.given != as_sent) return Sent::unknown;
  return peer.given->sequence >= awaited.sequence ? Sent::yes : Sent::no;
}

// Ranks that wait in vain; those of whom the other end of the link has sent it first.
class Waits {
 public:
  explicit Waits(const Answers& answers) : answers_(answers) {
    std::copy_if(answers.begin(), answers.end(), std::back_inserter(waiting_), waits);
  }

  std::vector<Blame> blame_links(const std::vector<std::string>& hosts) const {
    std::vector<Blame> blamed = blame_if(hosts, [this](const RankAnswer& waiting) {
      return has_sent(peer_of(waiting), waiting) == Sent::yes;
    });
    if (!blamed.empty()) return blamed;
    return blame_if(hosts, [this](const RankAnswer& waiting) {
      const RankAnswer& peer = peer_of(waiting);
      if (has_sent(peer, waiting) == Sent::no) return false;
      return !waits(peer) || peer.awaited->peer == waiting.rank;
    });
  }

  // "" if none waits.
  std::string in_words() const {
    std::string text;
    for (const RankAnswer& waiting : waiting_) {
      text += fmt::format(
          "{}rank {} for rank {}", text.empty() ? "" : ", ", waiting.rank, waiting.awaited->peer);
    }
    return text;
  }

 private:
  const RankAnswer& peer_of(const RankAnswer& waiting) const {
    return answers_[static_cast<size_t>(waiting.awaited->peer)];
  }

  std::vector<Blame> blame_if(const std::vector<std::string>& hosts,
                              const std::function<bool(const RankAnswer&)>& is_lost) const {
    std::vector<Blame> blamed;
    for (const RankAnswer& waiting : waiting_) {
      const int peer = waiting.awaited->peer;
      const std::vector<int> ends{std::min(waiting.rank, peer), std::max(waiting.rank, peer)};
      const bool is_known = std::any_of(
          blamed.begin(), blamed.end(), [&](const Blame& other) { return other.ranks == ends; });
      if (is_known || !is_lost(waiting)) continue;
      blamed.push_back(
          {.kind = Blame::Kind::link,
           .ranks = ends,
           .host = hosts[static_cast<size_t>(ends.front())],
           .what =
               fmt::format("rank {} waited for a message of rank {} in vain", waiting.rank, peer)});
    }
    return blamed;
  }

  const Answers& answers_;  // [world_size], in order
  Answers waiting_;
};

}  // namespace

Absence blame_absence(const std::vector<RankAnswer>& answers,
                      const std::vector<std::string>& hosts) {
  const bool is_everyones =
      answers.size() > 1 && std::all_of(answers.begin(), answers.end(), has_own_error);
  if (is_everyones) return {};
  std::vector<Blame> blamed = blame_ranks(answers, hosts, has_own_error);
  if (blamed.empty()) {
    blamed = blame_ranks(answers, hosts, [](const RankAnswer& answer) { return !answer.answers; });
  }
  if (!blamed.empty()) return {std::move(blamed), ""};
  const Waits in_vain(answers);
  blamed = in_vain.blame_links(hosts);
  const std::string who = in_vain.in_words();
  if (!blamed.empty() || who.empty()) return {std::move(blamed), ""};
  return {{}, "no link is known to have lost a message, and ranks waited in vain: " + who};
}

}  // namespace testbed
