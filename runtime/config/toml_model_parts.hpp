// The tables of a model preset beside its top level: [rope], [window_rope], [full_attention],
// [mla], [moe], [per_layer_input].
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/config/model_config.hpp"
#include "runtime/config/text_input.hpp"
#include "runtime/config/toml_table.hpp"

namespace testbed {

template <typename T>
using TomlNames = std::vector<std::pair<std::string_view, T>>;

// The value that the key's text names; the first one if the key is absent.
template <typename T>
T read_name(const TomlTable& table, std::string_view key, const TomlNames<T>& names) {
  const auto text = table.find_string(key);
  if (!text) return names.front().second;
  std::vector<std::string_view> known;
  known.reserve(names.size());
  for (const auto& [name, value] : names) {
    if (name == *text) return value;
    known.push_back(name);
  }
  table.fail_at(
      key, fmt::format("{} {} is not one of {}", key, in_quotes(*text), fmt::join(known, ", ")));
}

RopeConfig read_toml_rope(const toml::table& table, const std::string& source);
FullAttentionConfig read_toml_full_attention(const toml::table& table, const std::string& source);
MlaConfig read_toml_mla(const toml::table& table, const std::string& source);
MoeConfig read_toml_moe(const toml::table& table, const std::string& source);
PerLayerInputConfig read_toml_per_layer_input(const toml::table& table, const std::string& source);

}  // namespace testbed
