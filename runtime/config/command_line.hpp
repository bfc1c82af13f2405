// The command line (INTERFACE.md) as a Command.
#pragma once

#include <span>
#include <string>

#include "runtime/config/commands.hpp"

namespace testbed {

// `args` are argv without the program's name; the leading word `run` may be left out. Throws
// ConfigError, one line naming the option, for a mistake and for what is not built yet. Reads no
// file.
Command parse_command_line(std::span<const std::string> args);

}  // namespace testbed
