// Figures as JSON: what is not finite, or not there, is null.
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

}  // namespace testbed
