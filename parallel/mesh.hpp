// Mesh: ranks <-> (tp, cp, dp, pp) coordinates, and the groups along each axis. Arithmetic only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace testbed {

enum class Axis : uint8_t { tp, cp, dp, pp, world, ep };
constexpr std::string_view axis_name(Axis axis) {
  constexpr std::string_view names[] = {"tp", "cp", "dp", "pp", "world", "ep"};
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
//
// Experts: the TP*CP*DP ranks of a stage are cut into groups of EP neighbours, each of which holds
// all experts of the stage's layers once. ep divides tp*cp*dp.
struct Mesh {
  int tp = 1;
  int cp = 1;
  int dp = 1;
  int pp = 1;
  int ep = 1;

  int world_size() const { return tp * cp * dp * pp; }
  int degree(Axis axis) const;
  int rank(const Coordinates& c) const { return c.tp + tp * (c.cp + cp * (c.dp + dp * c.pp)); }
  Coordinates coordinates(int rank) const;
  int stage_size() const { return tp * cp * dp; }
  // The ranks that differ from `rank` only along `axis`, ordered by their coordinate on it; for ep
  // those of its expert group.
  std::vector<int> group(int rank, Axis axis) const;
  // Its place among them.
  int ep_rank(int rank) const { return rank % stage_size() % ep; }
  // Expert groups that reach across replicas make those step together.
  bool ep_spans_replicas() const { return ep > tp * cp; }
  bool operator==(const Mesh&) const = default;
};

}  // namespace testbed
