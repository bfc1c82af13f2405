// Times one collective by payload, group by group, and looks at every value that it gives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/accept/collective_blame.hpp"
#include "runtime/accept/collective_groups.hpp"
#include "runtime/accept/context.hpp"

namespace testbed {

struct SweepOptions {
  CommOp op = CommOp::all_reduce;
  std::vector<int64_t> sizes;  // payloads, ascending
  int repeats = 5;
  double sample_s = 5e-3;  // short calls are timed several at a time, so that a repeat takes this
  double point_s = 10.0;   // the repeats of one size: fewer if they would take longer
  uint64_t seed = 0;
};

// A rank that comes late to most collectives by its own doing: to so many calls, by so much.
struct Latecomer {
  int rank = 0;  // of the world
  double late_us = 0.0;
  int64_t n_late = 0;
  int64_t n_calls = 0;
};

struct CollectiveCurve {
  struct Point {
    int64_t bytes = 0;  // as nccl-tests counts them
    CommAlgorithm algorithm = CommAlgorithm::none;
    // Of the repeats: a call's time is the slowest rank's, without what the group waited for a rank
    // that came late to it.
    std::vector<double> us;
  };
  std::vector<int> ranks;
  std::string transport;
  std::vector<Point> points;
  std::optional<Latecomer> late;
  WrongValues wrong;
  bool is_wrong() const;
};

// Of every group. All ranks of the job call it together; on rank 0. Sizes after one of which a
// single call takes longer than point_s are left out, of every group.
std::vector<CollectiveCurve> sweep_collective(const AcceptContext& context,
                                              const GroupSet& set,
                                              const SweepOptions& options);

// What it sends over a group of n ranks.
CollectiveValues sweep_values(DType dtype, int n_ranks, const SweepOptions& options);

// Who of a group came late: gaps_us[rank][call] is what passed on a rank between the moment in
// which it was free for the call and the one in which it came to it. nullopt if nobody stands out.
std::optional<Latecomer> latecomer(const std::vector<int>& ranks,
                                   const std::vector<std::vector<double>>& gaps_us);

}  // namespace testbed
