// What the parts of validate() share.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>

#include "kernels/base/errors.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed {

inline bool positive(double x) { return std::isfinite(x) && x > 0; }

inline void require(bool condition, const std::string& source, std::string_view message) {
  if (!condition) throw ConfigError(fmt::format("{}: {}", source, message));
}

void check_rope(const RopeConfig& rope, const std::string& source);

}  // namespace testbed
