// Sampler: from vocabulary-parallel logits to one token, the same on every rank of the tp group.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device.hpp"
#include "parallel/comm/communicator.hpp"
#include "runtime/config/run_config.hpp"
#include "runtime/serving/step_plan.hpp"

namespace testbed {

// Full logits of the rows, F32 [r, vocab_size], on the host of every rank: gathers
// r * ceil(V / tp) floats per rank over tp, a group of host tensors. Padding is cut.
Tensor gather_logits(Device& device, Communicator& tp, TensorView logits_local, int64_t vocab_size);

// What greedy sampling exchanges per row and rank: value, id, whether all are finite.
inline constexpr int64_t sampled_row_bytes = 12;

// The next token of each row. Greedy exchanges sampled_row_bytes; otherwise the logits are
// gathered, and the draw depends only on (seed, request, position). tp: of host tensors. Throws
// NumericError naming a row whose logits are not finite.
std::vector<int32_t> sample(Device& device,
                            Communicator& tp,
                            const SamplingConfig& config,
                            TensorView logits_local,
                            int64_t first_id,
                            int64_t vocab_size,
                            std::span<const LogitsRow> rows);

// The id at which the cumulative probability of softmax(logits / temperature), largest first and
// cut at top_p, passes u in [0, 1).
int32_t draw(std::span<const float> logits, double temperature, double top_p, double u);
// Uniform in [0, 1), a function of its arguments only.
double uniform(uint64_t seed, int64_t request, int64_t position);

}  // namespace testbed
