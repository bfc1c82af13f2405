// A struct's numbers as TOML keys: one list serves reading and writing. A field that the file
// leaves out, or that holds its default, stays at the struct's default.
#pragma once

#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/config/toml_table.hpp"

namespace testbed {

constexpr double no_limit = std::numeric_limits<double>::max();

template <typename T>
struct NumberField {
  std::string_view key;  // named with its unit: "start_us"
  double T::*member;
  double unit = 1.0;    // the struct's value of 1 in the file
  double lowest = 0.0;  // as written in the file
  double highest = no_limit;
};

// The keys of a table that holds these fields and `others`.
template <typename T>
std::vector<std::string_view> field_keys(std::span<const NumberField<T>> fields,
                                         std::vector<std::string_view> others) {
  others.reserve(others.size() + fields.size());
  for (const NumberField<T>& field : fields) others.push_back(field.key);
  return others;
}

template <typename T>
void read_numbers(const TomlTable& table, std::span<const NumberField<T>> fields, T& values) {
  for (const NumberField<T>& field : fields)
    if (table.find(field.key) != nullptr)
      values.*field.member =
          table.get_number_in(field.key, field.lowest, field.highest) * field.unit;
}

template <typename T>
void write_numbers(const T& values, std::span<const NumberField<T>> fields, toml::table& table) {
  const T defaults;
  for (const NumberField<T>& field : fields)
    if (values.*field.member != defaults.*field.member)
      table.insert_or_assign(field.key, values.*field.member / field.unit);
}

}  // namespace testbed
