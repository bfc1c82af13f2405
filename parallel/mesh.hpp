// Mesh: ranks <-> (tp, cp, dp, pp) coordinates, and the groups along each axis. Arithmetic only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace testbed {

enum class Axis : uint8_t { tp, cp, dp, pp, world };
constexpr std::string_view axis_name(Axis axis) {
  constexpr std::string_view names[] = {"tp", "cp", "dp", "pp", "world"};
  return names[static_cast<int>(axis)];
}

struct Coordinates {
  int tp = 0;
  int cp = 0;
  int dp = 0;
  int pp = 0;
  bool operator==(const Coordinates&) const = default;
};

// rank = tp + TP*(cp + CP*(dp + DP*pp)), world = TP*CP*DP*PP. So the ranks of a tp group are
// neighbours, and pipeline stages are furthest apart.
struct Mesh {
  int tp = 1;
  int cp = 1;
  int dp = 1;
  int pp = 1;

  int world_size() const { return tp * cp * dp * pp; }
  int degree(Axis axis) const;
  int rank(const Coordinates& c) const { return c.tp + tp * (c.cp + cp * (c.dp + dp * c.pp)); }
  Coordinates coordinates(int rank) const;
  // The ranks that differ from `rank` only along `axis`, ordered by their coordinate on it.
  std::vector<int> group(int rank, Axis axis) const;
  bool operator==(const Mesh&) const = default;
};

}  // namespace testbed
