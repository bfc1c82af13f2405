#include "parallel/shard.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/check.hpp"

namespace testbed {

IndexRange split_range(int64_t n, int parts, int part, int64_t granularity) {
  CHECK(parts > 0 && part >= 0 && part < parts && granularity > 0);
  const int64_t granules = (n + granularity - 1) / granularity;
  const int64_t each = granules / parts;
  const int64_t larger = granules % parts;
  const int64_t begin = part * each + std::min<int64_t>(part, larger);
  const int64_t size = each + (part < larger ? 1 : 0);
  return {std::min(n, begin * granularity), std::min(n, (begin + size) * granularity)};
}

IndexRange vocabulary_shard(int64_t vocab_size, int tp, int tp_rank) {
  const int64_t each = (vocab_size + tp - 1) / tp;
  return {std::min(vocab_size, each * tp_rank), std::min(vocab_size, each * (tp_rank + 1))};
}

HeadShard shard_heads(int64_t n_heads, int64_t n_kv_heads, int tp, int tp_rank) {
  CHECK(n_heads % tp == 0 && n_heads % n_kv_heads == 0);
  CHECK(n_kv_heads % tp == 0 || tp % n_kv_heads == 0);
  HeadShard shard;
  shard.heads = split_range(n_heads, tp, tp_rank);
  const int64_t heads_per_kv = n_heads / n_kv_heads;
  shard.kv_heads = {shard.heads.begin / heads_per_kv, (shard.heads.end - 1) / heads_per_kv + 1};
  shard.first_replica = shard.heads.begin % heads_per_kv == 0;
  for (int64_t head = shard.heads.begin; head < shard.heads.end; ++head) {
    shard.head_to_kv.push_back(static_cast<int32_t>(head / heads_per_kv - shard.kv_heads.begin));
  }
  return shard;
}

namespace {

// Costs of units as running sums, in units of their greatest common divisor, so that equal layers
// compare exactly.
struct UnitCosts {
  std::vector<int64_t> sums;  // [n_units + 1]
  int64_t head = 0;

  int64_t n() const { return static_cast<int64_t>(sums.size()) - 1; }
  // Of units [begin, end).
  int64_t of(int64_t begin, int64_t end) const {
    return sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(begin)];
  }
};

UnitCosts unit_costs(std::span<const int64_t> layer_costs,
                     std::span<const int64_t> unit_starts,
                     int64_t head_cost) {
  UnitCosts costs{.sums = {0}, .head = head_cost};
  costs.sums.reserve(unit_starts.size() + 1);
  int64_t divisor = head_cost;
  for (size_t u = 0; u < unit_starts.size(); ++u) {
    const auto end =
        u + 1 < unit_starts.size() ? static_cast<size_t>(unit_starts[u + 1]) : layer_costs.size();
    int64_t cost = 0;
    for (auto layer = static_cast<size_t>(unit_starts[u]); layer < end; ++layer) {
      CHECK(layer_costs[layer] > 0);
      cost += layer_costs[layer];
    }
    divisor = std::gcd(divisor, cost);
    costs.sums.push_back(costs.sums.back() + cost);
  }
  for (int64_t& sum : costs.sums) sum /= divisor;
  costs.head /= divisor;
  return costs;
}

// Whether the units fit n_chunks chunks of at most `cap`: filling each to the brim needs the
// fewest, and fewer can be parted further.
bool fits(const UnitCosts& costs, int n_chunks, int64_t cap) {
  int64_t end = costs.n();
  int64_t room = cap - costs.head;
  for (int used = 0; used < n_chunks; ++used, room = cap) {
    const int64_t before = end;
    while (end > 0 && costs.of(end - 1, before) <= room) --end;
    if (end == 0) return true;
    if (end == before) return false;
  }
  return false;
}

int64_t smallest_largest_cost(const UnitCosts& costs, int n_chunks) {
  int64_t low = 1;
  int64_t high = costs.of(0, costs.n()) + costs.head;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (fits(costs, n_chunks, middle))
      high = middle;
    else
      low = middle + 1;
  }
  return high;
}

// Ends of n_chunks chunks of units [0, n), none above `cap`, with the smallest sum of squares; of
// equal sums the one with the larger first chunks.
std::vector<int64_t> most_even_ends(const UnitCosts& costs, int64_t n, int n_chunks, int64_t cap) {
  constexpr double impossible = std::numeric_limits<double>::infinity();
  const auto size = static_cast<size_t>(n + 1);
  std::vector<double> behind(size, impossible);  // [n + 1] best sum from a unit on
  behind[static_cast<size_t>(n)] = 0;
  // [n_chunks][n + 1] where the chunk that begins at a unit ends.
  std::vector<std::vector<int64_t>> ends(static_cast<size_t>(n_chunks),
                                         std::vector<int64_t>(size, 0));
  for (int chunk = n_chunks - 1; chunk >= 0; --chunk) {
    std::vector<double> here(size, impossible);
    for (int64_t begin = 0; begin < n; ++begin) {
      const auto b = static_cast<size_t>(begin);
      for (int64_t end = begin + 1; end <= n && costs.of(begin, end) <= cap; ++end) {
        const auto cost = static_cast<double>(costs.of(begin, end));
        const double sum = cost * cost + behind[static_cast<size_t>(end)];
        if (sum == impossible || sum > here[b]) continue;
        here[b] = sum;
        ends[static_cast<size_t>(chunk)][b] = end;
      }
    }
    behind = std::move(here);
  }
  std::vector<int64_t> chosen;
  chosen.reserve(static_cast<size_t>(n_chunks));
  for (const std::vector<int64_t>& end : ends)
    chosen.push_back(end[static_cast<size_t>(chosen.empty() ? 0 : chosen.back())]);
  return chosen;
}

}  // namespace

std::vector<IndexRange> split_layers(std::span<const int64_t> layer_costs,
                                     std::span<const int64_t> unit_starts,
                                     int n_chunks,
                                     int64_t head_cost) {
  const auto n_units = static_cast<int64_t>(unit_starts.size());
  CHECK(n_chunks >= 1 && n_units >= n_chunks && unit_starts.front() == 0 && head_cost >= 0);
  const UnitCosts costs = unit_costs(layer_costs, unit_starts, head_cost);
  const int64_t cap = smallest_largest_cost(costs, n_chunks);
  const int64_t fewest_before = n_chunks - 1;
  int64_t last = n_chunks == 1 ? 0 : n_units - 1;  // unit that begins the last chunk
  while (last > fewest_before && costs.of(last - 1, n_units) + costs.head <= cap) --last;
  std::vector<IndexRange> chunks;
  chunks.reserve(static_cast<size_t>(n_chunks));
  int64_t begin = 0;
  for (const int64_t end_unit : most_even_ends(costs, last, n_chunks - 1, cap)) {
    const int64_t end = unit_starts[static_cast<size_t>(end_unit)];
    chunks.push_back({begin, end});
    begin = end;
  }
  chunks.push_back({begin, static_cast<int64_t>(layer_costs.size())});
  return chunks;
}

}  // namespace testbed
