// One parser per command: arguments after the command's word.
#pragma once

#include <span>
#include <string>

#include "runtime/config/commands.hpp"

namespace testbed {

Command parse_run(std::span<const std::string> args);
Command parse_sweep(std::span<const std::string> args);
Command parse_compare(std::span<const std::string> args);
Command parse_plan(std::span<const std::string> args);
Command parse_probe(std::span<const std::string> args);
Command parse_accept(std::span<const std::string> args);

}  // namespace testbed
