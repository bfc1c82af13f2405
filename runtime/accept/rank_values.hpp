// Small values that the ranks of the job agree on.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/byte_stream.hpp"
#include "parallel/comm/control.hpp"
#include "runtime/probe/collective_timing.hpp"

namespace testbed {

// 0, 1, ... size - 1.
inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Rank 0's on every rank: plain data, or a vector of it. All ranks call it together.
template <typename T>
T value_of_root(ControlChannel& control, const T& mine) {
  ByteWriter out;
  out.put(mine);
  T value{};
  ByteReader(control.broadcast(out.take(), 0)).get(value);
  return value;
}

// On every rank. All ranks call it together.
inline double least_of_all(ControlChannel& control, double mine) {
  double least = mine;
  for (const std::vector<double>& of_rank : values_of_all(control, {mine}))
    least = std::min(least, of_rank.front());
  return least;
}

}  // namespace testbed
