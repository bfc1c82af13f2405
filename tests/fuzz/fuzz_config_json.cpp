// Any text as config.json and as generation_config.json gives a ModelConfig or a ConfigError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/base/errors.hpp"
#include "runtime/config/model_readers.hpp"
#include "runtime/config/rope.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    testbed::ModelConfig config = testbed::model_config_from_hf_text(text, "config.json");
    const int64_t active = config.n_active_parameters();
    if (active <= 0 || config.n_parameters() < active) __builtin_trap();
    for (const int64_t layer : {int64_t{0}, config.n_layers - 1}) {
      testbed::rope_table_of_layer(config, layer);
      if (config.cached(layer).elements() <= 0) __builtin_trap();
      if (!(config.scale_of_scores(layer) > 0)) __builtin_trap();
    }
    testbed::validate(testbed::truncated_to(config, (config.n_layers + 1) / 2), "truncated");
    testbed::add_generation_config(config, text, "generation_config.json");
  } catch (const testbed::ConfigError&) {  // NOLINT(bugprone-empty-catch)
  }
  return 0;
}
