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
    if (config.n_parameters() <= 0) __builtin_trap();
    testbed::rope_table(config.rope, config.head_dim);
    testbed::add_generation_config(config, text, "generation_config.json");
  } catch (const testbed::ConfigError&) {  // NOLINT(bugprone-empty-catch)
  }
  return 0;
}
