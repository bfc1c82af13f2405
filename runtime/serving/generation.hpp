// One generation on one replica: the first rank schedules and sends each step's plan to the others;
// all execute it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/control.hpp"
#include "parallel/mesh.hpp"
#include "runtime/measure/analysis.hpp"
#include "runtime/serving/executor.hpp"
#include "runtime/serving/scheduler.hpp"

namespace testbed {

// This rank's place in its replica.
struct Replica {
  ControlChannel& control;
  int rank = 0;            // world rank
  std::vector<int> ranks;  // world ranks of the replica; the first one schedules
  int dp = 0;
  // Replicas that share experts step together: the scheduling ranks of all of them, this replica's
  // included. Empty: this one steps on its own.
  std::vector<int> in_step;
  bool schedules() const { return rank == ranks.front(); }
};

struct GenerationResult {  // filled on the scheduling rank
  GenerationTiming timing;
  std::vector<std::vector<int32_t>> generated;  // [request of this replica]
  std::vector<BlockPool::Usage> peak_kv;        // [cp rank][KV group]
};

struct GenerationOptions {
  SchedulerOptions scheduler;
  Timeline* timeline = nullptr;  // breakdown pass
  int32_t repeat = 0;
  // Called on the scheduling rank for every accepted token, in order of steps: (index in requests,
  // id).
  std::function<void(size_t, int32_t)> on_token;
};

// All ranks of the replica call it together; requests matter on the scheduling rank.
GenerationResult generate(const Replica& replica,
                          Executor& executor,
                          const std::vector<Request>& requests,
                          const GenerationOptions& options);

}  // namespace testbed
