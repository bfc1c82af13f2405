#include "parallel/mesh.hpp"

#include "kernels/base/check.hpp"

namespace testbed {

int Mesh::degree(Axis axis) const {
  switch (axis) {
    case Axis::tp:
      return tp;
    case Axis::cp:
      return cp;
    case Axis::dp:
      return dp;
    case Axis::pp:
      return pp;
    case Axis::world:
      return world_size();
    case Axis::ep:
      return ep;
  }
  check_failed("known axis", __FILE__, __LINE__);
}

Coordinates Mesh::coordinates(int rank) const {
  CHECK(rank >= 0 && rank < world_size());
  return {rank % tp, rank / tp % cp, rank / (tp * cp) % dp, rank / (tp * cp * dp)};
}

std::vector<int> Mesh::group(int rank, Axis axis) const {
  std::vector<int> ranks;
  Coordinates c = coordinates(rank);
  for (int i = 0; i < degree(axis); ++i) {
    switch (axis) {
      case Axis::tp:
        c.tp = i;
        break;
      case Axis::cp:
        c.cp = i;
        break;
      case Axis::dp:
        c.dp = i;
        break;
      case Axis::pp:
        c.pp = i;
        break;
      case Axis::world:
        c = coordinates(i);
        break;
      case Axis::ep:
        c = coordinates(rank - ep_rank(rank) + i);
        break;
    }
    ranks.push_back(this->rank(c));
  }
  return ranks;
}

}  // namespace testbed
