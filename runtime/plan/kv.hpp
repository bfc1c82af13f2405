// Bytes of the KV cache: 2 * layers * n_kv_heads * head_dim * tokens * bytes, windows and latents
// included; layers that read another's cache have none. Of the whole model, or of one rank's part.
#pragma once

#include <cstdint>

#include "runtime/model/model.hpp"

namespace testbed::plan {

// What a token adds to the cache in all layers, over all heads; of a rank: on the cp rank that
// keeps it.
int64_t kv_bytes_per_token(const ModelConfig& model,
                           DType dtype,
                           const ShardPosition& position = {});

// What one sequence of `context` tokens keeps cached: a layer with a window keeps the window. Over
// cp: this rank's blocks of it, placed like a prompt's.
int64_t kv_bytes_of_sequence(const ModelConfig& model,
                             int64_t context,
                             DType dtype,
                             const ShardPosition& position = {});

// Multi-head attention in the place of grouped heads: every query head has its own K and V.
ModelConfig with_kv_heads(ModelConfig model, int64_t n_kv_heads);

// Layers in repeating groups of n_windowed with the window and then one without (Gemma 2: 1, Gemma
// 3: 5).
ModelConfig with_windows(ModelConfig model, int64_t n_windowed, int64_t window);

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): a layer caches one latent and one
// rotated key that all heads share.
int64_t mla_bytes_per_token(int64_t n_layers, int64_t latent, int64_t rope_dim, DType dtype);

}  // namespace testbed::plan
