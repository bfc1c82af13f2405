#include "runtime/plan/kv.hpp"

#include "kernels/cost.hpp"

namespace testbed::plan {

int64_t kv_bytes_per_token(const ModelConfig& model, DType dtype) {
  return model.n_layers * kv_write_cost(1, model.n_kv_heads, model.head_dim, dtype).kv_write_bytes;
}

int64_t kv_bytes_of_sequence(const ModelConfig& model, int64_t context, DType dtype) {
  // The query at the last position sees exactly what has to be kept.
  const AttentionSequence last{.n_rows = 1, .first_position = context - 1};
  int64_t n_bytes = 0;
  for (const int64_t window : model.layer_windows) {
    n_bytes +=
        attention_cost({&last, 1}, window, model.n_heads, model.n_kv_heads, model.head_dim, dtype)
            .kv_bytes;
  }
  return n_bytes;
}

ModelConfig with_kv_heads(ModelConfig model, int64_t n_kv_heads) {
  model.n_kv_heads = n_kv_heads;
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
