#include "parallel/mesh.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;

constexpr Axis axes[] = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};

TEST(Mesh, rank_equation) {
  const Mesh mesh{.tp = 2, .cp = 3, .dp = 4, .pp = 5};
  EXPECT_EQ(mesh.world_size(), 120);
  EXPECT_EQ(mesh.rank({.tp = 1, .cp = 2, .dp = 3, .pp = 4}), 119);
  EXPECT_EQ(mesh.rank({.tp = 1, .cp = 0, .dp = 0, .pp = 0}), 1);
  EXPECT_EQ(mesh.rank({.tp = 0, .cp = 1, .dp = 0, .pp = 0}), 2);
  EXPECT_EQ(mesh.rank({.tp = 0, .cp = 0, .dp = 1, .pp = 0}), 6);
  EXPECT_EQ(mesh.rank({.tp = 0, .cp = 0, .dp = 0, .pp = 1}), 24);
  EXPECT_EQ(mesh.rank({.tp = 1, .cp = 2, .dp = 1, .pp = 2}), 1 + 2 * (2 + 3 * (1 + 4 * 2)));
}

TEST(Mesh, coordinates_are_the_inverse_of_rank) {
  for (const Mesh mesh :
       {Mesh{}, Mesh{.tp = 3}, Mesh{.tp = 2, .cp = 3, .dp = 4, .pp = 5}, Mesh{.dp = 2, .pp = 3}}) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const Coordinates c = mesh.coordinates(rank);
      EXPECT_EQ(mesh.rank(c), rank);
      EXPECT_TRUE(c.tp < mesh.tp && c.cp < mesh.cp && c.dp < mesh.dp && c.pp < mesh.pp);
    }
    EXPECT_THROW((void)mesh.coordinates(mesh.world_size()), InternalError);
    EXPECT_THROW((void)mesh.coordinates(-1), InternalError);
  }
}

TEST(Mesh, groups_of_a_known_mesh) {
  const Mesh mesh{.tp = 2, .cp = 1, .dp = 2, .pp = 3};
  EXPECT_THAT(mesh.group(5, Axis::tp), ElementsAre(4, 5));
  EXPECT_THAT(mesh.group(5, Axis::cp), ElementsAre(5));
  EXPECT_THAT(mesh.group(5, Axis::dp), ElementsAre(5, 7));
  EXPECT_THAT(mesh.group(5, Axis::pp), ElementsAre(1, 5, 9));
  EXPECT_THAT(mesh.group(5, Axis::world), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

TEST(Mesh, the_groups_of_an_axis_part_the_world) {
  const Mesh mesh{.tp = 2, .cp = 3, .dp = 2, .pp = 4};
  for (const Axis axis : axes) {
    std::set<std::vector<int>> groups;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int> group = mesh.group(rank, axis);
      EXPECT_EQ(static_cast<int>(group.size()), mesh.degree(axis));
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      EXPECT_TRUE(std::find(group.begin(), group.end(), rank) != group.end());
      groups.insert(group);
    }
    EXPECT_EQ(static_cast<int>(groups.size()) * mesh.degree(axis), mesh.world_size());
  }
}

TEST(Mesh, expert_groups_are_neighbours_within_a_stage) {
  const Mesh mesh{.tp = 2, .cp = 1, .dp = 3, .pp = 2, .ep = 3};
  EXPECT_THAT(mesh.group(1, Axis::ep), ElementsAre(0, 1, 2));
  EXPECT_THAT(mesh.group(5, Axis::ep), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.group(10, Axis::ep), ElementsAre(9, 10, 11));
  EXPECT_EQ(mesh.ep_rank(10), 1);
  EXPECT_EQ(mesh.world_size(), 12) << "ep adds no ranks";
  EXPECT_TRUE(mesh.ep_spans_replicas());
  EXPECT_FALSE((Mesh{.tp = 2, .cp = 2, .dp = 2, .ep = 4}.ep_spans_replicas()));
}

TEST(Mesh, expert_groups_part_the_world_and_never_cross_stages) {
  for (const int ep : {1, 2, 3, 4, 6, 12}) {
    const Mesh mesh{.tp = 2, .cp = 3, .dp = 2, .pp = 3, .ep = ep};
    std::set<int> seen;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int> group = mesh.group(rank, Axis::ep);
      EXPECT_EQ(static_cast<int>(group.size()), ep);
      EXPECT_EQ(group[static_cast<size_t>(mesh.ep_rank(rank))], rank);
      for (const int other : group)
        EXPECT_EQ(mesh.coordinates(other).pp, mesh.coordinates(rank).pp);
      if (mesh.ep_rank(rank) == 0) seen.insert(group.begin(), group.end());
    }
    EXPECT_EQ(static_cast<int>(seen.size()), mesh.world_size());
  }
}

}  // namespace
}  // namespace testbed
