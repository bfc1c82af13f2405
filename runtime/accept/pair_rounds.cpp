#include "runtime/accept/pair_rounds.hpp"

#include <algorithm>

namespace testbed {

// n - 1 ranks sit on a circle that turns by one each round, the last sits in its centre; who face
// each other are a pair. Of an odd number the centre is empty.
std::vector<std::vector<RankPair>> pair_rounds(int n) {
  const int n_seats = n + n % 2;
  const int circle = n_seats - 1;
  std::vector<std::vector<RankPair>> rounds;
  if (n < 2) return rounds;
  rounds.reserve(static_cast<size_t>(circle));
  for (int turn = 0; turn < circle; ++turn) {
    std::vector<RankPair>& round = rounds.emplace_back();
    round.reserve(static_cast<size_t>(n / 2));
    if (n == n_seats) round.push_back(pair_of(turn, circle));
    for (int away = 1; away <= (circle - 1) / 2; ++away) {
      round.push_back(pair_of((turn + away) % circle, (turn - away + circle) % circle));
    }
    std::sort(round.begin(), round.end());
  }
  return rounds;
}

}  // namespace testbed
