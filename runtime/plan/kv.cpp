#include "runtime/plan/kv.hpp"

#include <map>

#include "kernels/attention_cost.hpp"
#include "runtime/plan/step_rows.hpp"

namespace testbed::plan {
int64_t kv_bytes_per_token(const ModelConfig& model, DType dtype, const ShardPosition& position) {
  int64_t n_bytes = 0;
  for (const int64_t layer : layers_of_rank(model, position)) {
    n_bytes += stored_token_bytes(model, layer, position.tp, position.tp_rank, dtype);
  }
  return n_bytes;
}

int64_t kv_bytes_of_sequence(const ModelConfig& model,
                             int64_t context,
                             DType dtype,
                             const ShardPosition& position) {
  // The query at the last position sees exactly what has to be kept.
  const StepRows last(model, position, decode_shape(1, context));
  std::map<int64_t, int64_t> n_kept;  // by window
  int64_t n_bytes = 0;
  for (const int64_t layer : layers_of_rank(model, position)) {
    const int64_t window = model.layer(layer).window;
    const auto [kept, is_new] = n_kept.try_emplace(window);
    if (is_new) kept->second = visible_tokens(last.parts(window).front().sequences.front(), window);
    n_bytes +=
        kept->second * stored_token_bytes(model, layer, position.tp, position.tp_rank, dtype);
  }
  return n_bytes;
}

ModelConfig with_kv_heads(ModelConfig model, int64_t n_kv_heads) {
  model.n_kv_heads = n_kv_heads;
  if (model.full_attention) model.full_attention->n_kv_heads = n_kv_heads;
  return model;
}

ModelConfig with_windows(ModelConfig model, int64_t n_windowed, int64_t window) {
  for (size_t layer = 0; layer < model.layer_windows.size(); ++layer) {
    const auto place = static_cast<int64_t>(layer) % (n_windowed + 1);
    model.layer_windows[layer] = place < n_windowed ? window : 0;
  }
  return model;
}

int64_t mla_bytes_per_token(int64_t n_layers, int64_t latent, int64_t rope_dim, DType dtype) {
  return n_layers * dtype_bytes(dtype, latent + rope_dim);
}

}  // namespace testbed::plan
