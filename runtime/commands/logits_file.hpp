// --logits: every request's logits as one safetensors file (INTERFACE.md).
#pragma once

#include <string>
#include <vector>

#include "parallel/comm/control.hpp"
#include "runtime/serving/executor.hpp"
#include "runtime/serving/scheduler.hpp"

namespace testbed {

// All ranks call it with the rows they captured; rank 0 writes. Per request k: requestK.prompt_ids
// I32 [P], requestK.prompt_logits F32 [P, V], requestK.greedy_ids I32 [G], requestK.greedy_logits
// F32 [G, V]; row s of the last is the row whose argmax is greedy_ids[s]. Of each layer N with
// experts requestK.layerN.router_ids I32 [P + G - 1, top_k].
void write_logits(ControlChannel& control,
                  const std::string& path,
                  const std::vector<Request>& requests,
                  const CapturedRun& captured,
                  int64_t vocab_size);

}  // namespace testbed
