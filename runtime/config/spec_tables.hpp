// The TOML tables that a cluster file holds inline or refers to: device, link, and the timing of
// both. What each function reads, its writer writes.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/config/toml_table.hpp"

namespace testbed {

DeviceSpec device_from_table(const toml::table& table, const std::string& source);
toml::table device_to_table(const DeviceSpec& device);

LinkSpec link_from_table(const toml::table& table, const std::string& source);
toml::table link_to_table(const LinkSpec& link);

DeviceTiming device_timing_from_table(const toml::table& table, const std::string& source);
toml::table device_timing_to_table(const DeviceTiming& timing);

LinkTiming link_timing_from_table(const toml::table& table, const std::string& source);
toml::table link_timing_to_table(const LinkTiming& timing);

// Every "op/algorithm" that LinkTiming may have: "all_reduce/ring".
std::vector<std::string> collective_algorithms();

// configs/KIND/NAME.toml, or the file itself where `name_or_path` ends in .toml.
std::filesystem::path preset_or_file(std::string_view kind, const std::string& name_or_path);

std::string toml_text(const toml::table& table);

}  // namespace testbed
