#include "runtime/plan/fits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/config/split.hpp"
#include "runtime/plan/kv.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed::plan {
int64_t resident_weight_bytes(const ModelConfig& model,
                              const ShardPosition& position,
                              const NumberFormat& format) {
  ModelConfig stored = model;  // shapes alone are asked for
  stored.stored_dtype = DType::BF16;
  const auto source = make_random_weights(stored, 0);
  const auto planned = [&](const ResidentWeights& wanted) {
    return planned_weights_bytes(*source, stored, position, wanted, DType::BF16);
  };
  const int64_t in_bf16 = planned({PlainWeights::bf16});
  if (format.held && format.held->is_quantised()) {
    return planned({PlainWeights::bf16, *format.held});
  }
  // Vectors are F32 in both, so the difference is two bytes for each value of a matrix.
  const int64_t n_values = (planned({PlainWeights::f32}) - in_bf16) / 2;
  const int64_t vectors = in_bf16 - dtype_bytes(DType::BF16, n_values);
  return vectors + std::llround(static_cast<double>(n_values) * format.bytes_per_value);
}

int64_t cards_needed(double n_bytes, double memory_bytes) {
  return static_cast<int64_t>(std::ceil(n_bytes / memory_bytes));
}

namespace {

// The largest share of a sequence on a rank of the stage: the ranks of cp keep different parts.
int64_t largest_kv_bytes(
    const ModelConfig& model, const Split& split, int stage, DType dtype, int64_t context) {
  int64_t largest = 0;
  for (int cp_rank = 0; cp_rank < split.cp; ++cp_rank) {
    const ShardPosition position = position_of(split, stage, cp_rank * split.tp);
    largest = std::max(largest, kv_bytes_of_sequence(model, context, dtype, position));
  }
  return largest;
}

int64_t conversations(int64_t memory_bytes, int64_t weight_bytes, int64_t kv_bytes) {
  // A stage whose layers all read another's cache keeps nothing.
  if (kv_bytes == 0) return std::numeric_limits<int64_t>::max();
  return std::max<int64_t>(0, memory_bytes - weight_bytes) / kv_bytes;
}

}  // namespace

int64_t users_of(const ModelConfig& model,
                 const Split& split,
                 const StepFormats& formats,
                 int64_t memory_bytes,
                 int64_t context) {
  int64_t users = std::numeric_limits<int64_t>::max();
  for (int stage = 0; stage < split.pp; ++stage) {
    const int64_t weights =
        resident_weight_bytes(model, position_of(split, stage), formats.weights);
    const int64_t each = largest_kv_bytes(model, split, stage, formats.activation, context);
    users = std::min(users, conversations(memory_bytes, weights, each));
  }
  return users;
}

Fit fit_of(const ModelConfig& model,
           const Split& split,
           const StepFormats& formats,
           int64_t memory_bytes) {
  Fit fit{.split = split};
  fit.users.fill(std::numeric_limits<int64_t>::max());
  for (int stage = 0; stage < split.pp; ++stage) {
    const ShardPosition position = position_of(split, stage);
    const int64_t weights = resident_weight_bytes(model, position, formats.weights);
    fit.weight_bytes = std::max(fit.weight_bytes, weights);
    fit.kv_bytes_per_token =
        std::max(fit.kv_bytes_per_token, kv_bytes_per_token(model, formats.activation, position));
    for (size_t i = 0; i < user_contexts.size(); ++i) {
      const int64_t each =
          largest_kv_bytes(model, split, stage, formats.activation, user_contexts[i]);
      fit.kv_bytes[i] = std::max(fit.kv_bytes[i], each);
      fit.users[i] = std::min(fit.users[i], conversations(memory_bytes, weights, each));
    }
  }
  fit.free_bytes = memory_bytes - fit.weight_bytes;
  return fit;
}

std::vector<Fit> fits_by_tp(const ModelConfig& model,
                            const Split& split,
                            int max_devices,
                            const StepFormats& formats,
                            int64_t memory_bytes) {
  std::vector<Fit> fits;
  for (const int tp : legal_tp(model, formats.weights.column_granularity(), split.ep)) {
    Split other = split;
    other.tp = tp;
    if (other.n_devices() > max_devices || other.mesh().stage_size() % split.ep != 0) continue;
    fits.push_back(fit_of(model, other, formats, memory_bytes));
  }
  return fits;
}

}  // namespace testbed::plan
