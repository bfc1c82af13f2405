#include "runtime/report/table_parts.hpp"

#include <cmath>
#include <iterator>

#include "runtime/report/table.hpp"

namespace testbed {

std::string human_bytes(int64_t n_bytes) {
  constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (n_bytes < 1000) return fmt::format("{} B", n_bytes);
  auto value = static_cast<double>(n_bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(units)) {
    value /= 1000.0;
    ++unit;
  }
  const int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, digits, units[unit]);
}

namespace table {

std::string number(double value) {
  if (!std::isfinite(value)) return "n/a";
  const double size = std::abs(value);
  const int digits = size >= 100.0 ? 0 : size >= 10.0 ? 1 : size >= 1.0 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}
std::string number(const std::optional<double>& value) { return value ? number(*value) : "n/a"; }

std::string percent(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? fmt::format("{:.3g} %", *value * 100.0) : "n/a";
}

void Lines::wrapped(std::string line, std::string_view indent) {
  while (line.size() > max_columns) {
    size_t at = line.rfind(' ', max_columns);
    if (at == std::string::npos || at <= indent.size()) break;
    text_ += line.substr(0, at) + '\n';
    line = std::string(indent) + line.substr(at + 1);
  }
  text_ += line + '\n';
}

}  // namespace table
}  // namespace testbed
