// A TOML table read strictly: unknown keys are refused, errors carry file:line (D25). Shared by the
// readers of presets; toml++ is used nowhere but in runtime/config.
#pragma once

#include <fmt/format.h>
#include <toml++/toml.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/errors.hpp"

namespace testbed {

// One table whose every key must be known. `table` must outlive it.
class TomlTable {
 public:
  TomlTable(const toml::table& table, std::string source, std::span<const std::string_view> known);

  const std::string& source() const { return source_; }

  [[noreturn]] void fail(const toml::source_position& at, std::string_view message) const;
  // At the key, or at the table where the key is not there.
  [[noreturn]] void fail_at(std::string_view key, std::string_view message) const;

  // read(), its ConfigError preceded by where `key` is: for keys that lead to other files.
  template <typename Read>
  auto located(std::string_view key, const Read& read) const {
    try {
      return read();
    } catch (const ConfigError& error) {
      fail_at(key, error.what());
    }
  }

  const toml::node* find(std::string_view key) const { return table_.get(key); }

  // `is` names the expected type in the message.
  template <typename T>
  std::optional<T> find_as(std::string_view key, std::string_view is) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    auto value = node->value_exact<T>();
    if (!value) fail_at(key, fmt::format("{} must be {}", key, is));
    return value;
  }
  template <typename T>
  T required(std::string_view key, const std::optional<T>& value) const {
    if (!value) fail(table_.source().begin, fmt::format("{} is missing", key));
    return *value;
  }

  std::optional<int64_t> find_int(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::vector<std::string> find_strings(std::string_view key) const;  // empty: there is none
  const toml::table* find_table(std::string_view key) const;

  int64_t get_int(std::string_view key) const { return required(key, find_int(key)); }
  bool get_bool(std::string_view key, bool fallback) const;
  double get_number(std::string_view key) const { return required(key, find_number(key)); }
  std::string get_string(std::string_view key) const { return required(key, find_string(key)); }

  // Numbers whose range is lowest to highest; nan is in no range.
  int64_t get_int_in(std::string_view key, int64_t lowest, int64_t highest) const;
  double get_number_in(std::string_view key, double lowest, double highest) const;

 private:
  void refuse_unknown(const toml::key& key, std::span<const std::string_view> known) const;

  const toml::table& table_;
  std::string source_;
};

// Throws ConfigError with file:line.
toml::table parse_toml(std::string_view text, const std::string& source);
toml::table read_toml_file(const std::filesystem::path& path);

}  // namespace testbed
