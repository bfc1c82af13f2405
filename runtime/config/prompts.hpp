// Prompts from a JSONL file: {"prompt": "…"} or {"prompt_ids": […]}, each with an optional
// "gen_tokens".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace testbed {

struct Prompt {
  std::optional<std::string> text;    // UTF-8, not empty; or else
  std::vector<int32_t> ids;           // not empty, not negative
  std::optional<int64_t> gen_tokens;  // at least 1; --gen-tokens where absent
  bool operator==(const Prompt&) const = default;
};

// Strict: anything else on a line is a ConfigError with file:line. Blank lines are skipped; a file
// without a prompt is an error.
std::vector<Prompt> parse_prompts(std::string_view jsonl, const std::string& source);
std::vector<Prompt> read_prompts(const std::filesystem::path& file);

}  // namespace testbed
