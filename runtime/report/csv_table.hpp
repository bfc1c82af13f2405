// CSV lines put together field by field: RFC 4180 (comma, CRLF, quotes doubled), one header line; a
// null or a figure that is not finite is an empty field. Does not depend on the locale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace testbed {

std::string csv_field(std::string_view text);
std::string csv_field(int64_t value);
std::string csv_field(double value);
inline std::string csv_field(int value) { return csv_field(int64_t{value}); }
inline std::string csv_field(const std::string& text) { return csv_field(std::string_view(text)); }
inline std::string csv_field(const std::optional<double>& value) {
  return value ? csv_field(*value) : std::string();
}

class CsvTable {
 public:
  // Name and value side by side; the first line's names become the header.
  template <typename T>
  void cell(std::string_view name, const T& value) {
    if (first_) {
      if (!header_.empty()) header_ += ',';
      header_ += name;
    }
    if (in_line_) lines_ += ',';
    lines_ += csv_field(value);
    in_line_ = true;
  }
  void end_line() {
    lines_ += "\r\n";
    in_line_ = false;
    first_ = false;
  }
  std::string text() const { return header_ + "\r\n" + lines_; }

 private:
  std::string header_;
  std::string lines_;
  bool first_ = true;
  bool in_line_ = false;
};

}  // namespace testbed
