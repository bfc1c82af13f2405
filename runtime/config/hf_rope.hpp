// The rope settings of a Hugging Face config.json in all their spellings (D10).
#pragma once

#include <cstdint>

#include "runtime/config/json_input.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed {

// rope_theta with rope_scaling (`rope_type` or the older `type`), or the newer rope_parameters.
// max_positions stands in where YaRN names no original context.
RopeConfig read_hf_rope(const JsonObject& config, int64_t max_positions);

}  // namespace testbed
