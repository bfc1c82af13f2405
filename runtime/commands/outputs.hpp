// Where a command's output goes.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>

#include "runtime/config/run_config.hpp"

namespace testbed {

// What a person reads goes to standard output, unless an output file was asked for there.
FILE* terminal(const OutputConfig& output);

// An output that cannot be written is refused before the work is done: throws ConfigError.
void check_all_writable(std::initializer_list<const std::optional<std::string>*> paths);

}  // namespace testbed
