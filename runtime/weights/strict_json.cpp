// nlohmann's parser with a callback that sees every key.
#include "runtime/weights/strict_json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "kernels/base/errors.hpp"

namespace testbed {

nlohmann::json parse_strict_json(std::string_view text,
                                 const std::string& file,
                                 std::string_view what) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> open_objects;
  const auto see = [&](int /*depth*/, Event event, nlohmann::json& value) {
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second)
        throw WeightsError(fmt::format("{}: {}: key '{}' appears twice", file, what, key));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), see);
  } catch (const nlohmann::json::exception& error) {
    // The message quotes the token it stopped at, which may be as long as the file.
    const std::string_view cause = std::string_view(error.what()).substr(0, 300);
    throw WeightsError(fmt::format("{}: {} is not valid JSON: {}", file, what, cause));
  }
}

}  // namespace testbed
