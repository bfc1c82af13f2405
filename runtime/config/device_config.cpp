// DeviceSpec from and to TOML.
#include "runtime/config/device_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/sim/op_time.hpp"
#include "runtime/config/dense_peaks.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/spec_tables.hpp"

namespace testbed {
namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;
constexpr double giga = 1e9;
constexpr double tera = 1e12;

constexpr std::array<std::string_view, 9> device_keys{"name",
                                                      "description",
                                                      "gpu_names",
                                                      "memory_gib",
                                                      "memory_gb_s",
                                                      "peak_tflops",
                                                      "chip",
                                                      "timing",
                                                      "timing_from"};
constexpr std::array<MathType, 8> math_types{MathType::f64,
                                             MathType::f32,
                                             MathType::tf32,
                                             MathType::f16,
                                             MathType::bf16,
                                             MathType::fp8,
                                             MathType::int8,
                                             MathType::fp4};
constexpr std::array<std::string_view, 7> chip_keys{"architecture",
                                                    "boost_mhz",
                                                    "n_sm",
                                                    "threads_per_sm",
                                                    "registers_per_sm",
                                                    "shared_kib_per_sm",
                                                    "l2_mib"};

// A GPU has SMs and states all of them; a CPU has no [chip].
ChipSpec chip_from_table(const toml::table& toml, const std::string& source) {
  const TomlTable table(toml, source, chip_keys);
  ChipSpec chip;
  chip.architecture = table.get_string("architecture");
  chip.boost_hz = table.get_number_in("boost_mhz", 1.0, 1e5) * 1e6;
  chip.n_sm = table.get_int_in("n_sm", 1, 1 << 16);
  chip.threads_per_sm = table.get_int_in("threads_per_sm", 32, 1 << 16);
  chip.registers_per_sm = table.get_int_in("registers_per_sm", 1, 1 << 24);
  chip.shared_bytes_per_sm = table.get_int_in("shared_kib_per_sm", 1, 1 << 20) * 1024;
  chip.l2_bytes = std::llround(table.get_number_in("l2_mib", 0.0, 1 << 20) * 1024 * 1024);
  return chip;
}

toml::table chip_to_table(const ChipSpec& chip) {
  return toml::table{{"architecture", chip.architecture},
                     {"boost_mhz", chip.boost_hz / 1e6},
                     {"n_sm", chip.n_sm},
                     {"threads_per_sm", chip.threads_per_sm},
                     {"registers_per_sm", chip.registers_per_sm},
                     {"shared_kib_per_sm", chip.shared_bytes_per_sm / 1024},
                     {"l2_mib", static_cast<double>(chip.l2_bytes) / (1024.0 * 1024.0)}};
}

void read_peaks(const toml::table& toml, const std::string& source, DeviceSpec& device) {
  std::array<std::string_view, math_types.size()> keys;
  std::transform(math_types.begin(), math_types.end(), keys.begin(), math_name);
  const TomlTable table(toml, source, keys);
  for (const MathType type : math_types)
    if (table.find(math_name(type)) != nullptr)
      device.peak_flops[type] = table.get_number_in(math_name(type), 1e-6, 1e6) * tera;
  if (device.peak_flops.empty()) table.fail(toml.source().begin, "peak_tflops has no peak");
  for (const auto& [type, peak] : device.peak_flops)
    if (const std::string error = dense_peak_error(device.chip, device.peak_flops, type);
        !error.empty())
      table.fail_at(math_name(type), error);
}

// The device that another device's calibration is carried from must have its own.
DeviceSpec read_calibrated(const std::string& name) {
  const std::filesystem::path path = find_preset("devices", name);
  const toml::table toml = read_toml_file(path);
  if (toml.contains("timing_from"))
    throw ConfigError(fmt::format("{} has no timing of its own to carry", name));
  return device_from_table(toml, path.string());
}

DeviceTiming read_timing(const TomlTable& table, const DeviceSpec& device) {
  const toml::table* timing = table.find_table("timing");
  const std::optional<std::string> from = table.find_string("timing_from");
  if (timing != nullptr && from) table.fail_at("timing_from", "[timing] is given as well");
  if (timing != nullptr) return device_timing_from_table(*timing, table.source());
  if (from)
    return table.located("timing_from",
                         [&] { return carried_timing(read_calibrated(*from), device); });
  DeviceTiming ideal;
  ideal.source = "none";
  return ideal;
}

}  // namespace

DeviceSpec device_from_table(const toml::table& toml, const std::string& source) {
  const TomlTable table(toml, source, device_keys);
  DeviceSpec device;
  device.name = table.get_string("name");
  device.description = table.get_string("description");
  device.gpu_names = table.find_strings("gpu_names");
  device.memory_bytes = std::llround(table.get_number_in("memory_gib", 1e-3, 1e6) * gib);
  device.memory_bytes_per_s = table.get_number_in("memory_gb_s", 1e-3, 1e6) * giga;
  if (const toml::table* chip = table.find_table("chip"))
    device.chip = chip_from_table(*chip, source);
  const toml::table* peaks = table.find_table("peak_tflops");
  if (peaks == nullptr) table.fail_at("peak_tflops", "a table [peak_tflops] is required");
  read_peaks(*peaks, source, device);
  device.timing = read_timing(table, device);
  return device;
}

toml::table device_to_table(const DeviceSpec& device) {
  toml::table peaks;
  for (const auto& [type, peak] : device.peak_flops)
    peaks.insert_or_assign(math_name(type), peak / tera);
  toml::table table{{"name", device.name},
                    {"description", device.description},
                    {"memory_gib", static_cast<double>(device.memory_bytes) / gib},
                    {"memory_gb_s", device.memory_bytes_per_s / giga},
                    {"peak_tflops", std::move(peaks)},
                    {"timing", device_timing_to_table(device.timing)}};
  if (!device.gpu_names.empty()) {
    toml::array names;
    for (const std::string& name : device.gpu_names) names.push_back(name);
    table.insert_or_assign("gpu_names", std::move(names));
  }
  if (device.chip.n_sm > 0) table.insert_or_assign("chip", chip_to_table(device.chip));
  return table;
}

DeviceSpec read_device(const std::string& name_or_path) {
  const std::filesystem::path path = preset_or_file("devices", name_or_path);
  return device_from_table(read_toml_file(path), path.string());
}

std::string device_toml(const DeviceSpec& device) { return toml_text(device_to_table(device)); }

}  // namespace testbed
