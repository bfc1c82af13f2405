#include "runtime/report/csv_table.hpp"

#include <fmt/format.h>

#include <cmath>

#include "runtime/report/text.hpp"

namespace testbed {

std::string csv_field(std::string_view text) {
  std::string clean = valid_utf8(text);
  if (clean.find_first_of(",\"\r\n") == std::string::npos) return clean;
  std::string out = "\"";
  for (const char c : clean) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string csv_field(int64_t value) { return fmt::format("{}", value); }

std::string csv_field(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }

}  // namespace testbed
