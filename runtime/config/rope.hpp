// Rotary frequencies. Angle of pair i at position p: p * inv_freq[i]; cos and sin are multiplied by
// `multiplier`. Sources: RoFormer (arXiv 2104.09864), position interpolation (2306.15595), YaRN
// (2309.00071), and the llama3 rule of the Llama 3.1 release.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/config/model_config.hpp"

namespace testbed {

struct RopeTable {
  std::vector<double> inv_freq;  // [head_dim / 2]
  double multiplier = 1.0;
  bool interleaved = false;  // pair i is elements (2i, 2i + 1), not (i, i + head_dim / 2)
};

// head_dim is even.
RopeTable rope_table(const RopeConfig& rope, int64_t head_dim);

// The table of a layer's keys and queries; of MLA's rotated part.
RopeTable rope_table_of_layer(const ModelConfig& config, int64_t layer);

// YaRN's factor for longer contexts, 1 if factor <= 1.
double yarn_mscale(double factor, double weight);

}  // namespace testbed
