// The requests of a run: synthetic ones, or prompts read and tokenised on rank 0 and sent to every
// rank.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/control.hpp"
#include "parallel/mesh.hpp"
#include "runtime/config/run_config.hpp"
#include "runtime/serving/scheduler.hpp"
#include "runtime/text/tokenizer.hpp"

namespace testbed {

struct Workload {
  std::vector<Request> requests;         // of the whole job, by index
  std::unique_ptr<Tokenizer> tokenizer;  // process 0, if the model has one
};

// All processes call it. Throws ConfigError on every process: an empty prompt, ids outside the
// vocabulary, more positions than the model has (D20), text for a model without a tokenizer, fewer
// requests than replicas.
Workload make_workload(const RunConfig& config,
                       const ModelConfig& model,
                       const Mesh& mesh,
                       ControlChannel& control);

// The requests of one replica: dp splits them into consecutive parts.
std::vector<Request> requests_of(const Workload& workload, const Mesh& mesh, int dp);

}  // namespace testbed
