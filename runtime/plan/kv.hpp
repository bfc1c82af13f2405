// Bytes of the KV cache: 2 * layers * n_kv_heads * head_dim * tokens * bytes, windows and latents
// included.
#pragma once

#include <cstdint>

#include "runtime/config/model_config.hpp"

namespace testbed::plan {

// What a token adds to the cache in all layers, over all heads.
int64_t kv_bytes_per_token(const ModelConfig& model, DType dtype);

// What one sequence of `context` tokens keeps cached: a layer with a window keeps the window.
int64_t kv_bytes_of_sequence(const ModelConfig& model, int64_t context, DType dtype);

// Multi-head attention in the place of grouped heads: every query head has its own K and V.
ModelConfig with_kv_heads(ModelConfig model, int64_t n_kv_heads);

// Layers in repeating groups of n_windowed with the window and then one without (Gemma 2: 1, Gemma
// 3: 5).
ModelConfig with_windows(ModelConfig model, int64_t n_windowed, int64_t window);

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): a layer caches one latent and one
// rotated key that all heads share.
int64_t mla_bytes_per_token(int64_t n_layers, int64_t latent, int64_t rope_dim, DType dtype);

}  // namespace testbed::plan
