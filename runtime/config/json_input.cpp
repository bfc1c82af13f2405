// Strict JSON on top of nlohmann-json.
#include "runtime/config/json_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/base/errors.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {

using nlohmann::json;

namespace {

int64_t line_of(std::string_view text, size_t n_bytes, int64_t first_line) {
  const std::string_view before = text.substr(0, std::min(n_bytes, text.size()));
  return first_line + std::count(before.begin(), before.end(), '\n');
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: REASON" -> REASON
std::string reason_of(const json::exception& error) {
  const std::string_view what = error.what();
  const size_t column = what.find(", column ");
  const size_t cut = column == std::string_view::npos ? what.find("] ") : what.find(": ", column);
  std::string reason(cut == std::string_view::npos ? what : what.substr(cut + 2));
  // The parser shows the bytes it last read as they are.
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  for (char& c : reason) c = printable(c) ? c : '?';
  return reason;
}

// Refuses duplicate keys and deep nesting while nlohmann parses; it would keep the last duplicate.
class StrictEvents {
 public:
  explicit StrictEvents(std::string source) : source_(std::move(source)) {}

  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    constexpr int max_depth = 64;
    if (depth > max_depth)
      throw ConfigError(fmt::format("{}: JSON nested deeper than {}", source_, max_depth));
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second)
        throw ConfigError(fmt::format("{}: key {} appears twice", source_, in_quotes(key)));
    }
    return true;
  }

 private:
  std::string source_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

json parse_json(std::string_view text, const std::string& source, int64_t first_line) {
  StrictEvents events(first_line > 1 ? fmt::format("{}:{}", source, first_line) : source);
  try {
    return json::parse(text.begin(), text.end(), std::ref(events));
  } catch (const json::parse_error& error) {
    throw ConfigError(fmt::format("{}:{}: invalid JSON: {}",
                                  source,
                                  line_of(text, error.byte == 0 ? 0 : error.byte - 1, first_line),
                                  reason_of(error)));
  } catch (const json::exception& error) {  // a number out of range
    throw ConfigError(fmt::format("{}:{}: invalid JSON: {}", source, first_line, reason_of(error)));
  }
}

std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array() && value.size() > 8)
    return fmt::format("an array of {} values", value.size());
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr size_t max_shown = 160;
  if (text.size() > max_shown) text = text.substr(0, max_shown) + "...";
  return text;
}

int64_t json_int(const json& value, std::string_view what, int64_t lowest, int64_t highest) {
  const bool in_int64 =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  const int64_t number = in_int64 ? value.get<int64_t>() : 0;
  if (!in_int64 || number < lowest || number > highest)
    throw ConfigError(fmt::format(
        "{} is {}; expected a whole number from {} to {}", what, shown(value), lowest, highest));
  return number;
}

JsonObject::JsonObject(const json& value, std::string where)
    : value_(value), where_(std::move(where)) {
  if (!value.is_object())
    throw ConfigError(fmt::format("{}: expected a JSON object, found {}", where_, shown(value)));
}

const json* JsonObject::find(std::string_view key) const {
  const auto it = value_.find(key);
  return it == value_.end() || it->is_null() ? nullptr : &*it;
}

JsonObject JsonObject::get_object(std::string_view key) const {
  return required(key, find_object(key));
}

std::string JsonObject::get_string(std::string_view key) const {
  return required(key, find_string(key));
}

bool JsonObject::get_bool(std::string_view key) const { return required(key, find_bool(key)); }

double JsonObject::get_number(std::string_view key) const {
  return required(key, find_number(key));
}

const nlohmann::json& JsonObject::get_list(std::string_view key) const {
  const nlohmann::json* found = find(key);
  if (found == nullptr || !found->is_array()) fail(key, "is not a list");
  return *found;
}

std::vector<std::string> JsonObject::get_strings(std::string_view key) const {
  const nlohmann::json& list = get_list(key);
  std::vector<std::string> found;
  found.reserve(list.size());
  for (const nlohmann::json& element : list) {
    if (!element.is_string()) fail(key, "is not a list of text");
    found.push_back(element.get<std::string>());
  }
  return found;
}

void JsonObject::fail(std::string_view key, std::string_view message) const {
  throw ConfigError(fmt::format("{}: {} {}", where_, key, message));
}

std::optional<JsonObject> JsonObject::find_object(std::string_view key) const {
  const json* member = find(key);
  if (member == nullptr) return std::nullopt;
  return JsonObject(*member, fmt::format("{}: {}", where_, key));
}

std::optional<std::string> JsonObject::find_string(std::string_view key) const {
  const json* member = find(key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_string()) fail(key, fmt::format("is {}; expected a string", shown(*member)));
  return member->get<std::string>();
}

std::optional<bool> JsonObject::find_bool(std::string_view key) const {
  const json* member = find(key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_boolean())
    fail(key, fmt::format("is {}; expected true or false", shown(*member)));
  return member->get<bool>();
}

std::optional<double> JsonObject::find_number(std::string_view key) const {
  const json* member = find(key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_number()) fail(key, fmt::format("is {}; expected a number", shown(*member)));
  return member->get<double>();
}

std::optional<int64_t> JsonObject::find_int(std::string_view key,
                                            int64_t lowest,
                                            int64_t highest) const {
  const json* member = find(key);
  if (member == nullptr) return std::nullopt;
  return json_int(*member, fmt::format("{}: {}", where_, key), lowest, highest);
}

int64_t JsonObject::get_int(std::string_view key, int64_t lowest, int64_t highest) const {
  const auto number = find_int(key, lowest, highest);
  if (!number) fail(key, "is missing");
  return *number;
}

}  // namespace testbed
