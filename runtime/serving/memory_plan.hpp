// What a run will hold in memory, rank by rank, before anything large is allocated; refuses what
// does not fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/control.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/model/model.hpp"

namespace testbed {

// The memory that the ranks of this host may use together: the smaller of MemAvailable and what the
// cgroup leaves.
int64_t host_memory_bytes();

// Activations of one rank in the step that needs most, from the shapes a step takes: an upper
// bound.
struct WorkspaceShape {
  int64_t n_rows = 0;  // of this rank
  int64_t n_logits_rows = 0;
  int64_t context_tokens = 0;  // that the rows of a step look back on, all requests together
  int64_t block_size = 0;      // of the cache
};
int64_t planned_workspace(const ModelConfig& model,
                          const ShardPosition& position,
                          const WorkspaceShape& shape,
                          DType compute);

// What a place (a host, a simulated device) has to hold: of its ranks together.
struct MemoryUse {
  std::string place;
  int n_ranks = 0;
  int64_t needed_bytes = 0;
  int64_t capacity_bytes = 0;
  MemoryRecord largest;
  void add(const MemoryRecord& plan);
  // The sentence that names the place and its largest rank if it is too much (D28).
  std::optional<std::string> why_too_much() const;
};

// All processes call it with the plans of the ranks they would run in a place: "host a", a GPU. Why
// the ranks of a place together need more than it has, on every process; nullopt if all fit.
std::optional<std::string> why_places_lack_memory(ControlChannel& control,
                                                  const std::string& place,
                                                  const std::vector<MemoryRecord>& plans);

}  // namespace testbed
