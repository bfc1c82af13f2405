// Strict JSON input: what is malformed, duplicated or of the wrong type is a ConfigError that names
// the file and the key. No nlohmann exception leaves this file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace testbed {

// `source` is the file; the line of a syntax error is appended to it, counted from first_line.
nlohmann::json parse_json(std::string_view text, const std::string& source, int64_t first_line = 1);

// Typed access to the members of one object. A null member counts as absent. Borrows the value.
class JsonObject {
 public:
  // `where` opens every message: "config.json" or "config.json: rope_scaling".
  JsonObject(const nlohmann::json& value, std::string where);

  const std::string& where() const { return where_; }
  const nlohmann::json& value() const { return value_; }
  const nlohmann::json* find(std::string_view key) const;  // nullptr if absent or null
  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::optional<JsonObject> find_object(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;  // an integer will do
  // A JSON integer in [lowest, highest]; 3.0 is not one.
  std::optional<int64_t> find_int(std::string_view key, int64_t lowest, int64_t highest) const;
  // Required: a ConfigError if there is none.
  JsonObject get_object(std::string_view key) const;
  std::string get_string(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  double get_number(std::string_view key) const;
  int64_t get_int(std::string_view key, int64_t lowest, int64_t highest) const;
  const nlohmann::json& get_list(std::string_view key) const;
  std::vector<std::string> get_strings(std::string_view key) const;

  [[noreturn]] void fail(std::string_view key, std::string_view message) const;

 private:
  template <typename T>
  T required(std::string_view key, std::optional<T> found) const {
    if (!found) fail(key, "is missing");
    return *std::move(found);
  }
  const nlohmann::json& value_;
  std::string where_;
};

// The value itself as an integer in [lowest, highest]; `what` opens the message.
int64_t json_int(const nlohmann::json& value,
                 std::string_view what,
                 int64_t lowest,
                 int64_t highest);

// A short rendering of a value for messages.
std::string shown(const nlohmann::json& value);

}  // namespace testbed
