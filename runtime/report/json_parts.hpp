// What the JSON reports are made of: a figure that is not finite, or not there, is null.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace testbed {

inline nlohmann::ordered_json json_number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}
inline nlohmann::ordered_json json_number(const std::optional<double>& value) {
  return value ? json_number(*value) : nlohmann::ordered_json(nullptr);
}

template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

template <typename Items, typename ToJson>
nlohmann::ordered_json list(const Items& items, ToJson&& to_json_of) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const auto& item : items) array.push_back(to_json_of(item));
  return array;
}

}  // namespace testbed
