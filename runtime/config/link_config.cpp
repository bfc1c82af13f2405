// LinkSpec from and to TOML.
#include "runtime/config/link_config.hpp"

#include <array>
#include <locale>
#include <sstream>

#include "runtime/config/presets.hpp"
#include "runtime/config/spec_tables.hpp"

namespace testbed {
namespace {

constexpr std::array<std::string_view, 4> link_keys{"name", "gb_s", "timing", "timing_from"};

// The link that another link's calibration is carried from must have been measured itself.
LinkTiming carried_timing(const std::string& from, double bytes_per_s) {
  const std::filesystem::path path = find_preset("links", from);
  const toml::table toml = read_toml_file(path);
  if (toml.contains("timing_from"))
    throw ConfigError(fmt::format("{} has no timing of its own to carry", from));
  LinkTiming timing = at_line_rate(link_from_table(toml, path.string()), bytes_per_s).timing;
  if (timing.source != "none")
    timing.source = fmt::format(
        "carried from {}: same latencies and share of the line rate; {}", from, timing.source);
  return timing;
}

}  // namespace

std::filesystem::path preset_or_file(std::string_view kind, const std::string& name_or_path) {
  if (name_or_path.ends_with(".toml")) return name_or_path;
  return find_preset(kind, name_or_path);
}

std::string toml_text(const toml::table& table) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << table << '\n';
  return text.str();
}

LinkSpec at_line_rate(LinkSpec link, double bytes_per_s) {
  const double ratio = bytes_per_s / link.bytes_per_s;
  link.bytes_per_s = bytes_per_s;
  for (auto& [name, protocols] : link.timing.of)
    for (ProtocolTiming& protocol : protocols) protocol.bytes_per_s *= ratio;
  return link;
}

LinkSpec link_from_table(const toml::table& toml, const std::string& source) {
  const TomlTable table(toml, source, link_keys);
  LinkSpec link;
  link.name = table.get_string("name");
  link.bytes_per_s = table.get_number_in("gb_s", 1e-6, 1e6) * 1e9;
  const toml::table* timing = table.find_table("timing");
  const std::optional<std::string> from = table.find_string("timing_from");
  if (timing != nullptr && from) table.fail_at("timing_from", "[timing] is given as well");
  link.timing.source = "none";
  if (timing != nullptr) link.timing = link_timing_from_table(*timing, source);
  if (from)
    link.timing =
        table.located("timing_from", [&] { return carried_timing(*from, link.bytes_per_s); });
  return link;
}

toml::table link_to_table(const LinkSpec& link) {
  return toml::table{{"name", link.name},
                     {"gb_s", link.bytes_per_s / 1e9},
                     {"timing", link_timing_to_table(link.timing)}};
}

LinkSpec read_link(const std::string& name_or_path) {
  const std::filesystem::path path = preset_or_file("links", name_or_path);
  return link_from_table(read_toml_file(path), path.string());
}

}  // namespace testbed
