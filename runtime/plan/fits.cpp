#include "runtime/plan/fits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/config/split.hpp"
#include "runtime/plan/kv.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed::plan {
namespace {

// The part of the model whose cache lies on one device.
ModelConfig cached_on(const ModelConfig& model, const ShardPosition& position) {
  ModelConfig part = with_kv_heads(model, heads_of_rank(model, position).kv_heads.size());
  part.layer_windows.clear();
  for (const int64_t layer : layers_of_rank(model, position)) {
    part.layer_windows.push_back(model.layer_windows[static_cast<size_t>(layer)]);
  }
  part.n_layers = static_cast<int64_t>(part.layer_windows.size());
  return part;
}

}  // namespace

int64_t resident_weight_bytes(const ModelConfig& model,
                              const ShardPosition& position,
                              const NumberFormat& format) {
  const auto source = make_random_weights(model, 0);
  const auto planned = [&](ResidentWeights wanted) {
    return planned_weights_bytes(*source, model, position, wanted, DType::BF16);
  };
  // Vectors are F32 in both, so the difference is two bytes for each value of a matrix.
  const int64_t in_bf16 = planned(ResidentWeights::bf16);
  const int64_t n_values = (planned(ResidentWeights::f32) - in_bf16) / 2;
  const int64_t vectors = in_bf16 - dtype_bytes(DType::BF16, n_values);
  return vectors + std::llround(static_cast<double>(n_values) * format.bytes_per_value);
}

int64_t cards_needed(double n_bytes, double memory_bytes) {
  return static_cast<int64_t>(std::ceil(n_bytes / memory_bytes));
}

int64_t users_of(const ModelConfig& model,
                 const Split& split,
                 const StepFormats& formats,
                 int64_t memory_bytes,
                 int64_t context) {
  int64_t users = std::numeric_limits<int64_t>::max();
  for (int stage = 0; stage < split.pp; ++stage) {
    const ShardPosition position = position_of(split, stage);
    const int64_t free = memory_bytes - resident_weight_bytes(model, position, formats.weights);
    const int64_t each =
        kv_bytes_of_sequence(cached_on(model, position), context, formats.activation);
    users = std::min(users, std::max<int64_t>(0, free) / each);
  }
  return users;
}

Fit fit_of(const ModelConfig& model,
           const Split& split,
           const StepFormats& formats,
           int64_t memory_bytes) {
  Fit fit{.split = split};
  for (int stage = 0; stage < split.pp; ++stage) {
    const ShardPosition position = position_of(split, stage);
    fit.weight_bytes =
        std::max(fit.weight_bytes, resident_weight_bytes(model, position, formats.weights));
    fit.kv_bytes_per_token = std::max(
        fit.kv_bytes_per_token, kv_bytes_per_token(cached_on(model, position), formats.activation));
  }
  fit.free_bytes = memory_bytes - fit.weight_bytes;
  for (size_t i = 0; i < user_contexts.size(); ++i) {
    fit.users[i] = users_of(model, split, formats, memory_bytes, user_contexts[i]);
  }
  return fit;
}

std::vector<Fit> fits_by_tp(const ModelConfig& model,
                            int pp,
                            int max_devices,
                            const StepFormats& formats,
                            int64_t memory_bytes) {
  std::vector<Fit> fits;
  for (const int tp : legal_tp(model, 1)) {
    if (tp * pp <= max_devices) fits.push_back(fit_of(model, {tp, pp}, formats, memory_bytes));
  }
  return fits;
}

}  // namespace testbed::plan
