// Values of command line options, parsed: each helper throws a ConfigError that starts with the
// option's name.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/errors.hpp"
#include "runtime/config/run_config.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {

inline constexpr int64_t max_ranks = 1 << 20;
inline constexpr int64_t max_tokens = 1LL << 31;

template <typename T>
using Choices = std::vector<std::pair<std::string_view, T>>;

template <typename T>
T choose(std::string_view option, const std::string& value, const Choices<T>& choices) {
  std::vector<std::string_view> names;
  for (const auto& [name, choice] : choices) {
    if (value == name) return choice;
    names.push_back(name);
  }
  throw ConfigError(
      fmt::format("{}: {} is not one of {}", option, in_quotes(value), fmt::join(names, ", ")));
}

// INTERFACE.md has it, the program does not yet: "--cp 2: context parallelism is not built yet".
[[noreturn]] void not_built(std::string_view option, std::string_view what);

std::vector<std::string_view> split(std::string_view text, char separator);

std::vector<int32_t> parse_ids(const std::string& text);  // "1,2,3"

// "1,2,4", each in [lowest, highest] and none twice.
std::vector<int64_t> parse_distinct_ints(std::string_view option,
                                         std::string_view text,
                                         int64_t lowest,
                                         int64_t highest);

// "a,b", none empty and none twice.
std::vector<std::string> parse_names(std::string_view option, std::string_view text);

// A value of --inject, as in injection_forms.
Injection parse_injection(const std::string& text);
inline constexpr std::string_view injection_forms =
    "delay:rank=R|all,us=N[,every=N], flip:rank=R[,at=N][,bit=B], slow-link:rank=A,peer=B,gb_s=X, "
    "drop-link:rank=A,peer=B, slow-device:rank=R,factor=F, kill:rank=R[,at=N], stop:rank=R[,at=N]";

std::string require_text(std::string_view option, const std::string& value);  // not empty

double parse_positive(std::string_view option, const std::string& value);
double parse_non_negative(std::string_view option, const std::string& value);

}  // namespace testbed
