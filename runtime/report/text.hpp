// Text from outside (prompts, host names) made fit for reports.
#pragma once

#include <string>
#include <string_view>

namespace testbed {

// Invalid UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);
// valid_utf8, and control characters as \xNN: a terminal shows it and does nothing else.
std::string printable(std::string_view text);

}  // namespace testbed
