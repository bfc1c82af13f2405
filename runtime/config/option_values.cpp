// Parsing of option values.
#include "runtime/config/option_values.hpp"

#include <algorithm>
#include <set>

namespace testbed {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end = text.find(separator); end != std::string_view::npos;
       end = text.find(separator)) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

void not_built(std::string_view option, std::string_view what) {
  throw ConfigError(fmt::format("{}: {} not built yet", option, what));
}

std::vector<int32_t> parse_ids(const std::string& text) {
  if (text.empty()) throw ConfigError("--prompt-ids: the prompt is empty");
  std::vector<int32_t> ids;
  for (const std::string_view id : split(text, ','))
    ids.push_back(static_cast<int32_t>(parse_int("--prompt-ids", id, 0, INT32_MAX)));
  return ids;
}

std::vector<int64_t> parse_distinct_ints(std::string_view option,
                                         std::string_view text,
                                         int64_t lowest,
                                         int64_t highest) {
  const std::vector<std::string_view> parts = split(text, ',');
  std::vector<int64_t> values;
  values.reserve(parts.size());
  for (const std::string_view part : parts)
    values.push_back(parse_int(option, part, lowest, highest));
  if (std::set<int64_t>(values.begin(), values.end()).size() != values.size())
    throw ConfigError(fmt::format("{}: a value of {} appears twice", option, in_quotes(text)));
  return values;
}

std::vector<std::string> parse_names(std::string_view option, std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  if (std::find(parts.begin(), parts.end(), "") != parts.end())
    throw ConfigError(fmt::format("{}: {} has an empty name", option, in_quotes(text)));
  if (std::set<std::string_view>(parts.begin(), parts.end()).size() != parts.size())
    throw ConfigError(fmt::format("{}: a name of {} appears twice", option, in_quotes(text)));
  return {parts.begin(), parts.end()};
}

std::string require_text(std::string_view option, const std::string& value) {
  if (value.empty()) throw ConfigError(fmt::format("{}: the value is empty", option));
  return value;
}

double parse_positive(std::string_view option, const std::string& value) {
  const double number = parse_double(option, value);
  if (number <= 0) throw ConfigError(fmt::format("{}: {} is not above 0", option, value));
  return number;
}

double parse_non_negative(std::string_view option, const std::string& value) {
  const double number = parse_double(option, value);
  if (number < 0) throw ConfigError(fmt::format("{}: {} is below 0", option, value));
  return number;
}

}  // namespace testbed
