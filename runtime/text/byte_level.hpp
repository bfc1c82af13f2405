// The printable spelling of bytes in byte-level vocabularies (GPT-2): bytes 33-126, 161-172 and
// 174-255 are the code points of the same number, the other 68, in order, are U+0100 to U+0143.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace testbed {

// The bytes that a token's spelling stands for; nullopt if it is not byte-level spelling.
std::optional<std::string> byte_level_bytes(std::string_view spelling);

// The spelling of bytes: the inverse.
std::string byte_level_spelling(std::string_view bytes);

}  // namespace testbed
