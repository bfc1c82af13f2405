// Files, numbers and quoting.
#include "runtime/config/text_input.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

template <typename T>
bool parse_whole(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return !text.empty() && result.ec == std::errc{} && result.ptr == end;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path) {
  constexpr uintmax_t max_bytes = 64ULL << 20;
  const std::string name = path.string();
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw ConfigError(fmt::format("{}: no such file", name));
  if (!std::filesystem::is_regular_file(status))
    throw ConfigError(fmt::format("{}: not a regular file", name));
  const uintmax_t n_bytes = std::filesystem::file_size(path, error);
  if (error) throw ConfigError(fmt::format("{}: cannot be read: {}", name, error.message()));
  if (n_bytes > max_bytes)
    throw ConfigError(
        fmt::format("{}: {} bytes; a configuration file has at most {}", name, n_bytes, max_bytes));
  std::string text(static_cast<size_t>(n_bytes), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) throw ConfigError(fmt::format("{}: cannot be read", name));
  return text;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t max_shown = 160;
  using nlohmann::json;
  const bool cut = text.size() > max_shown;
  std::string shown(text.substr(0, max_shown));
  if (cut) shown += "...";
  return json(std::move(shown)).dump(-1, ' ', false, json::error_handler_t::replace);
}

int64_t parse_int(std::string_view what, std::string_view text, int64_t lowest, int64_t highest) {
  int64_t value = 0;
  if (!parse_whole(text, value) || value < lowest || value > highest)
    throw ConfigError(fmt::format(
        "{}: {} is not a whole number from {} to {}", what, in_quotes(text), lowest, highest));
  return value;
}

uint64_t parse_uint64(std::string_view what, std::string_view text) {
  uint64_t value = 0;
  if (!parse_whole(text, value))
    throw ConfigError(
        fmt::format("{}: {} is not a whole number from 0 to 2^64-1", what, in_quotes(text)));
  return value;
}

double parse_double(std::string_view what, std::string_view text) {
  double value = 0;
  if (!parse_whole(text, value) || !std::isfinite(value))
    throw ConfigError(fmt::format("{}: {} is not a number like 0.8", what, in_quotes(text)));
  return value;
}

}  // namespace testbed
