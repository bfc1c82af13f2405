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
  WrongBytes bytes;
};

struct PairSamples {
  int64_t n_bytes = 0;              // of a message
  std::vector<double> one_way_s;    // of the repeats: half of there and back
  std::vector<double> both_ways_s;  // one each way at once, the slower end; empty if not asked for
  std::optional<WrongMessage> wrong;  // the first
};
using SamplesOfPairs = std::map<RankPair, PairSamples>;

}  // namespace testbed
