// Which pairs of ranks exchange at the same time: every rank in at most one pair a round, every
// pair once. Arithmetic only.
#pragma once

#include <vector>

namespace testbed {

struct RankPair {
  int low = 0;
  int high = 1;
  bool operator==(const RankPair&) const = default;
  bool operator<(const RankPair& other) const {
    return low != other.low ? low < other.low : high < other.high;
  }
  bool holds(int rank) const { return rank == low || rank == high; }
  int other(int rank) const { return rank == low ? high : low; }
};
constexpr RankPair pair_of(int a, int b) { return a < b ? RankPair{a, b} : RankPair{b, a}; }

// Round-robin tournament by the circle method: n - 1 rounds of n / 2 pairs, or n rounds if n is
// odd, in each of which another rank is without a pair. Pairs in ascending order of low.
std::vector<std::vector<RankPair>> pair_rounds(int n);

}  // namespace testbed
