// Strict reading of a TOML table.
#include "runtime/config/toml_table.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

TomlTable::TomlTable(const toml::table& table,
                     std::string source,
                     std::span<const std::string_view> known)
    : table_(table), source_(std::move(source)) {
  for (const auto& [key, value] : table_) refuse_unknown(key, known);
}

void TomlTable::fail(const toml::source_position& at, std::string_view message) const {
  throw ConfigError(fmt::format("{}:{}: {}", source_, at.line, message));
}

void TomlTable::fail_at(std::string_view key, std::string_view message) const {
  const toml::node* node = find(key);
  fail((node == nullptr ? table_.source() : node->source()).begin, message);
}

std::optional<int64_t> TomlTable::find_int(std::string_view key) const {
  return find_as<int64_t>(key, "a whole number");
}

std::optional<double> TomlTable::find_number(std::string_view key) const {
  const toml::node* node = find(key);
  if (node != nullptr && node->is_integer()) return static_cast<double>(*find_int(key));
  return find_as<double>(key, "a number");
}

std::optional<std::string> TomlTable::find_string(std::string_view key) const {
  return find_as<std::string>(key, "a string");
}

std::vector<std::string> TomlTable::find_strings(std::string_view key) const {
  const toml::node* node = find(key);
  if (node == nullptr) return {};
  const toml::array* array = node->as_array();
  if (array == nullptr) fail_at(key, fmt::format("{} must be a list of strings", key));
  std::vector<std::string> strings;
  strings.reserve(array->size());
  for (const toml::node& item : *array) {
    const auto text = item.value_exact<std::string>();
    if (!text) fail_at(key, fmt::format("{} must be a list of strings", key));
    strings.push_back(*text);
  }
  return strings;
}

const toml::table* TomlTable::find_table(std::string_view key) const {
  const toml::node* node = find(key);
  if (node != nullptr && !node->is_table()) fail_at(key, fmt::format("{} must be a table", key));
  return node == nullptr ? nullptr : node->as_table();
}

bool TomlTable::get_bool(std::string_view key, bool fallback) const {
  return find_as<bool>(key, "true or false").value_or(fallback);
}

int64_t TomlTable::get_int_in(std::string_view key, int64_t lowest, int64_t highest) const {
  const int64_t value = get_int(key);
  if (value < lowest || value > highest)
    fail_at(key, fmt::format("{} is {}; expected {} to {}", key, value, lowest, highest));
  return value;
}

double TomlTable::get_number_in(std::string_view key, double lowest, double highest) const {
  const double value = get_number(key);
  if (!(value >= lowest && value <= highest))
    fail_at(key, fmt::format("{} is {}; expected {} to {}", key, value, lowest, highest));
  return value;
}

void TomlTable::refuse_unknown(const toml::key& key,
                               std::span<const std::string_view> known) const {
  if (std::find(known.begin(), known.end(), key.str()) != known.end()) return;
  const auto closest =
      std::min_element(known.begin(), known.end(), [&](std::string_view a, std::string_view b) {
        return edit_distance(key.str(), a) < edit_distance(key.str(), b);
      });
  std::string message = fmt::format("unknown key {}", in_quotes(key.str()));
  if (edit_distance(key.str(), *closest) <= 3)
    message += fmt::format("; did you mean {}?", *closest);
  fail(key.source().begin, message);
}

toml::table parse_toml(std::string_view text, const std::string& source) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}:{}: invalid TOML: {}",
                                  source,
                                  error.source().begin.line,
                                  std::string_view(error.description())));
  }
}

toml::table read_toml_file(const std::filesystem::path& path) {
  return parse_toml(read_text_file(path), path.string());
}

}  // namespace testbed
