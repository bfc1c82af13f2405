// Any text as a prompts file gives prompts that keep the promises of prompts.hpp, or a ConfigError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/base/errors.hpp"
#include "runtime/config/prompts.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const testbed::Prompt& prompt : testbed::parse_prompts(text, "prompts.jsonl")) {
      const bool has_text = prompt.text && !prompt.text->empty();
      if (has_text == !prompt.ids.empty()) __builtin_trap();
    }
  } catch (const testbed::ConfigError&) {  // NOLINT(bugprone-empty-catch)
  }
  return 0;
}
