// The command line (INTERFACE.md) as a RunConfig.
#pragma once

#include <span>
#include <string>
#include <variant>

#include "runtime/config/run_config.hpp"

namespace testbed {

// --help or --version was asked for: print and exit 0.
struct InfoText {
  std::string text;  // ends in a newline
};

// `args` are argv without the program's name; the leading word `run` may be left out. Throws
// ConfigError, one line naming the option, for a mistake and for what is not built yet. Reads no
// file.
std::variant<RunConfig, InfoText> parse_command_line(std::span<const std::string> args);

}  // namespace testbed
