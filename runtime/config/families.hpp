// The model families, and what each of them always has, may have, or never has.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace testbed {

struct Family {
  enum class Moe : uint8_t { never, optional, always };
  std::string_view name;
  Moe moe = Moe::never;
  bool has_mla = false;
};

inline constexpr std::array<Family, 12> families{{{"llama"},
                                                  {"qwen2"},
                                                  {"qwen3"},
                                                  {"mistral"},
                                                  {"gemma2"},
                                                  {"gemma3"},
                                                  {"gemma4", Family::Moe::optional},
                                                  {"mixtral", Family::Moe::always},
                                                  {"qwen3_moe", Family::Moe::always},
                                                  {"deepseek_v2", Family::Moe::always, true},
                                                  {"deepseek_v3", Family::Moe::always, true},
                                                  {"gpt_oss", Family::Moe::always}}};

// nullptr if there is none of that name.
constexpr const Family* find_family(std::string_view name) {
  for (const Family& family : families)
    if (family.name == name) return &family;
  return nullptr;
}

// "llama, qwen2, ...", for messages.
inline std::string family_names() {
  std::vector<std::string_view> names;
  names.reserve(families.size());
  for (const Family& family : families) names.push_back(family.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace testbed
