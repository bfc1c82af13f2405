// The pieces of the table (table.hpp).
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/measure/run_record.hpp"

namespace testbed::table {

constexpr size_t max_columns = 100;
constexpr size_t max_device_lines = 16;

std::string number(double value);  // three digits; "n/a" if not finite
std::string number(const std::optional<double>& value);
std::string percent(const std::optional<double>& value);

class Lines {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    std::string line = fmt::format(format, std::forward<Args>(args)...);
    line.erase(line.find_last_not_of(' ') + 1);
    text_ += line + '\n';
  }
  // Breaks at blanks; what follows is indented.
  void wrapped(std::string line, std::string_view indent);
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_phase(Lines& out, const PhaseRecord& phase);
// Nothing if no ring ran; if the model has no experts.
void add_ring(Lines& out, const PhaseRecord& phase);
void add_experts(Lines& out, const PhaseRecord& phase);
// Nothing if no device has counters.
void add_counters(Lines& out, const RunRecord& record);

}  // namespace testbed::table
