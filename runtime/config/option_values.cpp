// Parsing of option values.
#include "runtime/config/option_values.hpp"

#include <algorithm>
#include <set>

namespace testbed {
namespace {

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

}  // namespace

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

DelayInjection parse_injection(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string_view kind = std::string_view(text).substr(0, colon);
  for (const std::string_view later : {"flip", "slow-link", "kill", "stop"})
    if (kind == later) not_built(fmt::format("--inject {}", kind), "this injection is");
  const auto fail = [&] {
    throw ConfigError(
        fmt::format("--inject: {} is not delay:rank=R,us=N[,every=N]", in_quotes(text)));
  };
  if (kind != "delay" || colon == std::string::npos) fail();
  DelayInjection delay;
  std::set<std::string_view> seen;
  for (const std::string_view field : split(std::string_view(text).substr(colon + 1), ',')) {
    const size_t equals = field.find('=');
    if (equals == std::string_view::npos) fail();
    const std::string_view name = field.substr(0, equals);
    const std::string_view value = field.substr(equals + 1);
    const std::string what = fmt::format("--inject delay, {}", in_quotes(name));
    if (!seen.insert(name).second) throw ConfigError(fmt::format("{} appears twice", what));
    constexpr int64_t max_us = 3'600'000'000;
    if (name == "rank")
      delay.rank = static_cast<int>(parse_int(what, value, 0, max_ranks));
    else if (name == "us")
      delay.delay_us = parse_int(what, value, 1, max_us);
    else if (name == "every")
      delay.every = parse_int(what, value, 1, max_tokens);
    else
      fail();
  }
  if (!seen.contains("rank") || !seen.contains("us")) fail();
  return delay;
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
