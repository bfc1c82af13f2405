// JSONL prompts.
#include "runtime/config/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "runtime/config/json_input.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

void refuse_unknown_keys(const JsonObject& object) {
  for (const auto& [key, value] : object.value().items())
    if (key != "prompt" && key != "prompt_ids" && key != "gen_tokens")
      throw ConfigError(fmt::format("{}: unknown key {}; known: prompt, prompt_ids, gen_tokens",
                                    object.where(),
                                    in_quotes(key)));
}

std::vector<int32_t> read_ids(const JsonObject& object) {
  const nlohmann::json& list = *object.find("prompt_ids");
  if (!list.is_array()) object.fail("prompt_ids", "must be a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const auto& id : list)
    ids.push_back(static_cast<int32_t>(
        json_int(id, fmt::format("{}: prompt_ids", object.where()), 0, INT32_MAX)));
  if (ids.empty()) object.fail("prompt_ids", "is empty");
  return ids;
}

Prompt read_prompt(const JsonObject& object) {
  refuse_unknown_keys(object);
  constexpr int64_t max_tokens = 1LL << 31;
  Prompt prompt;
  prompt.text = object.find_string("prompt");
  prompt.gen_tokens = object.find_int("gen_tokens", 1, max_tokens);
  if (prompt.text.has_value() == object.has("prompt_ids"))
    throw ConfigError(fmt::format("{}: expected either prompt or prompt_ids", object.where()));
  if (!prompt.text) prompt.ids = read_ids(object);
  if (prompt.text && prompt.text->empty()) object.fail("prompt", "is empty");
  return prompt;
}

}  // namespace

std::vector<Prompt> parse_prompts(std::string_view jsonl, const std::string& source) {
  std::vector<Prompt> prompts;
  int64_t line_number = 0;
  while (!jsonl.empty()) {
    const size_t end = std::min(jsonl.find('\n'), jsonl.size());
    const std::string_view line = jsonl.substr(0, end);
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json document = parse_json(line, source, line_number);
    prompts.push_back(read_prompt(JsonObject(document, fmt::format("{}:{}", source, line_number))));
  }
  if (prompts.empty()) throw ConfigError(fmt::format("{}: no prompts in the file", source));
  return prompts;
}

std::vector<Prompt> read_prompts(const std::filesystem::path& file) {
  return parse_prompts(read_text_file(file), file.string());
}

}  // namespace testbed
