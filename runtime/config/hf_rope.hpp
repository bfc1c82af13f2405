// The rope settings of a Hugging Face config.json in all their spellings (D10).
#pragma once

#include <cstdint>

#include "runtime/config/json_input.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed {

// rope_theta with rope_scaling (`rope_type` or the older `type`), or the newer rope_parameters.
// max_positions stands in where YaRN names no original context, default_theta where there is no
// theta.
RopeConfig read_hf_rope(const JsonObject& config,
                        int64_t max_positions,
                        double default_theta = 10000.0);

// Of full attention and window layers.
struct LayerRopes {
  RopeConfig full;
  RopeConfig window;
  bool operator==(const LayerRopes&) const = default;
};

// rope_parameters with an object per layer type; or rope_theta, rope_scaling (full attention) and
// rope_local_base_freq (windows). `defaults`: of what is left out.
LayerRopes read_hf_layer_ropes(const JsonObject& config,
                               int64_t max_positions,
                               const LayerRopes& defaults);

}  // namespace testbed
