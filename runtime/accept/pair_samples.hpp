// What was measured of a pair of ranks (pair_exchange.hpp). Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "runtime/accept/byte_pattern.hpp"
#include "runtime/accept/pair_rounds.hpp"

namespace testbed {

// A message that did not arrive as it was sent.
struct WrongMessage {
  int from = 0;
  int to = 1;
  int64_t n_bytes = 0;  // of it: a trial and a handshake are shorter than what is measured
  WrongBytes bytes;
};

struct PairSamples {
  int64_t n_bytes = 0;              // of a message: fewer than planned where the pair is so slow
  std::vector<double> one_way_s;    // of the repeats: half of there and back
  std::vector<double> both_ways_s;  // one each way at once, the slower end; empty if not asked for
  std::optional<WrongMessage> wrong;  // the first
};
using SamplesOfPairs = std::map<RankPair, PairSamples>;

// What many pairs do at a time and what one does by itself are not comparable.
struct LinkSamples {
  SamplesOfPairs together;  // every pair
  SamplesOfPairs alone;     // those that were measured once more, one at a time
  const PairSamples& last(const RankPair& pair) const {
    const auto again = alone.find(pair);
    return again == alone.end() ? together.at(pair) : again->second;
  }
};

}  // namespace testbed
