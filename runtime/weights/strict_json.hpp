// JSON in which a repeated key is an error. nlohmann would keep the last value silently.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace testbed {

// Throws WeightsError "FILE: WHAT: ..." with the position of a syntax error, or the repeated key.
nlohmann::json parse_strict_json(std::string_view text,
                                 const std::string& file,
                                 std::string_view what);

}  // namespace testbed
