// AcceptanceProfile from and to TOML.
#include "runtime/config/acceptance_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "parallel/comm/communicator.hpp"
#include "runtime/accept/figures.hpp"
#include "runtime/config/spec_tables.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

constexpr std::array<std::string_view, 10> profile_keys{"name",
                                                        "device",
                                                        "description",
                                                        "tried_on_hardware",
                                                        "latency_up_to_bytes",
                                                        "bandwidth_from_bytes",
                                                        "cohort_tolerance",
                                                        "flaky_allowed",
                                                        "requires",
                                                        "expect"};
constexpr std::array<std::string_view, 7> requires_keys{"devices_per_host",
                                                        "device_name",
                                                        "device_memory_gb",
                                                        "host_memory_gb",
                                                        "dev_shm_gb",
                                                        "ecc",
                                                        "clock_mhz"};
constexpr std::array<std::string_view, 12> expect_keys{"figure",
                                                       "op",
                                                       "ranks",
                                                       "bytes",
                                                       "scope",
                                                       "algorithm",
                                                       "dtype",
                                                       "model",
                                                       "expected",
                                                       "by_bytes",
                                                       "tolerance",
                                                       "source"};
constexpr int64_t most_bytes = int64_t{1} << 50;
constexpr double most_expected = 1e12;

// Which fields tell the figures of a kind apart.
struct FieldUse {
  std::string_view prefix;
  std::vector<std::string_view> fields;
};
const std::vector<FieldUse>& field_uses() {
  static const std::vector<FieldUse> uses{
      {"device.read_gb_s", {}},
      {"device.gemm_tflop_s", {"dtype"}},
      {"link.", {"bytes", "by_bytes", "scope"}},
      {"collective.", {"op", "ranks", "bytes", "by_bytes", "scope", "algorithm"}},
      {"model.", {"model"}},
      {"soak.", {"model"}}};
  return uses;
}

void check_fields(const TomlTable& table, const std::string& figure) {
  const auto use = std::find_if(field_uses().begin(), field_uses().end(), [&](const FieldUse& u) {
    return figure.starts_with(u.prefix);
  });
  CHECK(use != field_uses().end());
  for (const std::string_view field :
       {"op", "ranks", "bytes", "by_bytes", "scope", "algorithm", "dtype", "model"}) {
    const bool used = std::find(use->fields.begin(), use->fields.end(), field) != use->fields.end();
    if (!used && table.find(field) != nullptr) {
      table.fail_at(field, fmt::format("{} is not told apart by {}", figure, field));
    }
  }
}

std::string known_figures() {
  std::vector<std::string_view> names;
  names.reserve(std::size(figure_kinds));
  for (const FigureKind& kind : figure_kinds) names.push_back(kind.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

template <size_t n>
void check_one_of(const TomlTable& table,
                  std::string_view key,
                  const std::optional<std::string>& value,
                  const std::array<std::string_view, n>& names) {
  if (!value || std::find(names.begin(), names.end(), *value) != names.end()) return;
  table.fail_at(
      key, fmt::format("{} {} is not one of {}", key, in_quotes(*value), fmt::join(names, ", ")));
}

FigureKey read_key(const TomlTable& table) {
  FigureKey key{.figure = table.get_string("figure")};
  if (!figure_kind(key.figure)) {
    table.fail_at(
        "figure",
        fmt::format("unknown figure {}; figures: {}", in_quotes(key.figure), known_figures()));
  }
  check_fields(table, key.figure);
  key.op = table.find_string("op");
  check_one_of(table,
               "op",
               key.op,
               std::to_array({comm_op_name(CommOp::all_reduce),
                              comm_op_name(CommOp::all_gather),
                              comm_op_name(CommOp::reduce_scatter),
                              comm_op_name(CommOp::all_to_all),
                              comm_op_name(CommOp::broadcast)}));
  if (table.find("ranks") != nullptr) {
    key.ranks = static_cast<int>(table.get_int_in("ranks", 1, 1 << 20));
  }
  key.scope = table.find_string("scope");
  check_one_of(
      table, "scope", key.scope, std::to_array<std::string_view>({"within-host", "between-hosts"}));
  key.algorithm = table.find_string("algorithm");
  if (key.algorithm && !algorithm_by_name(*key.algorithm)) {
    table.fail_at("algorithm", fmt::format("unknown algorithm {}", in_quotes(*key.algorithm)));
  }
  key.dtype = table.find_string("dtype");
  key.model = table.find_string("model");
  return key;
}

// Gates are per size, and only where the figure says something: time below the plateau of
// bandwidth, bandwidth on it (D33).
void check_size(const TomlTable& table,
                std::string_view at,
                const AcceptanceProfile& profile,
                const FigureKey& key) {
  if (key.figure == "collective.us" && *key.bytes > profile.latency_up_to_bytes) {
    table.fail_at(at,
                  fmt::format("collective.us of {} bytes is above latency_up_to_bytes = {}: there "
                              "it is the bandwidth that is measured",
                              *key.bytes,
                              profile.latency_up_to_bytes));
  }
  if (key.figure != "collective.busbw_gb_s") return;
  if (*key.bytes < profile.bandwidth_from_bytes) {
    table.fail_at(at,
                  fmt::format("collective.busbw_gb_s of {} bytes is below bandwidth_from_bytes = "
                              "{}: there it is the latency that is measured",
                              *key.bytes,
                              profile.bandwidth_from_bytes));
  }
  if (key.ranks == 1) table.fail_at("ranks", "one rank has no bus bandwidth");
}

// [[bytes, expected], ...]
std::vector<std::pair<int64_t, double>> read_points(const TomlTable& table) {
  const auto fail = [&table] {
    table.fail_at("by_bytes", "by_bytes must be a list of [bytes, expected]");
  };
  const toml::array* list = table.find("by_bytes")->as_array();
  if (list == nullptr || list->empty()) fail();
  std::vector<std::pair<int64_t, double>> points;
  points.reserve(list->size());
  for (const toml::node& node : *list) {
    const toml::array* pair = node.as_array();
    if (pair == nullptr || pair->size() != 2) fail();
    const auto bytes = pair->get(0)->value_exact<int64_t>();
    const auto expected = pair->get(1)->value<double>();  // also from a whole number
    if (!bytes || !expected) fail();
    if (*bytes < 1 || *bytes > most_bytes || !(*expected > 0 && *expected <= most_expected)) fail();
    points.emplace_back(*bytes, *expected);
  }
  return points;
}

void add_expectation(const TomlTable& table,
                     std::string_view at,
                     Expectation expectation,
                     AcceptanceProfile& profile) {
  const auto same = std::find_if(
      profile.expectations.begin(), profile.expectations.end(), [&](const Expectation& other) {
        return other.key == expectation.key;
      });
  if (same != profile.expectations.end()) {
    table.fail_at(at, fmt::format("the same figure is expected at {}", same->where));
  }
  if (expectation.key.bytes) check_size(table, at, profile, expectation.key);
  profile.expectations.push_back(std::move(expectation));
}

void read_expectations(const TomlTable& table, AcceptanceProfile& profile) {
  Expectation expectation{.key = read_key(table)};
  const std::string& figure = expectation.key.figure;
  // What must not be less than expected * (1 - tolerance) is never met by everything.
  const double most_tolerance = figure_kind(figure)->more_is_better ? 0.99 : 100.0;
  expectation.tolerance = table.get_number_in("tolerance", 0.0, most_tolerance);
  expectation.source = table.get_string("source");
  if (expectation.source.empty()) table.fail_at("source", "source is empty");
  const toml::node& first = *table.find("figure");
  expectation.where = fmt::format("{}:{}", table.source(), first.source().begin.line);

  if (table.find("by_bytes") != nullptr) {
    for (const std::string_view key : {"bytes", "expected"}) {
      if (table.find(key) != nullptr) table.fail_at(key, "by_bytes says it already");
    }
    for (const auto& [bytes, expected] : read_points(table)) {
      expectation.key.bytes = bytes;
      expectation.expected = expected;
      add_expectation(table, "by_bytes", expectation, profile);
    }
    return;
  }
  if (table.find("bytes") != nullptr) {
    expectation.key.bytes = table.get_int_in("bytes", 1, most_bytes);
  } else if (figure.starts_with("collective.") || figure.starts_with("link.")) {
    table.fail_at("figure", fmt::format("bytes is missing: {} is held size by size", figure));
  }
  expectation.expected = table.get_number_in("expected", 1e-12, most_expected);
  add_expectation(table, "bytes", std::move(expectation), profile);
}

Requirements read_requirements(const toml::table& toml, const std::string& source) {
  const TomlTable table(toml, source, requires_keys);
  Requirements needs;
  if (table.find("devices_per_host") != nullptr) {
    needs.devices_per_host = static_cast<int>(table.get_int_in("devices_per_host", 1, 1024));
  }
  needs.device_name = table.find_string("device_name");
  const auto number = [&table](std::string_view key, std::optional<double>& value) {
    if (table.find(key) != nullptr) value = table.get_number_in(key, 0.0, 1e9);
  };
  number("device_memory_gb", needs.device_memory_gb);
  number("host_memory_gb", needs.host_memory_gb);
  number("dev_shm_gb", needs.dev_shm_gb);
  number("clock_mhz", needs.clock_mhz);
  if (table.find("ecc") != nullptr) needs.ecc = table.get_bool("ecc", false);
  return needs;
}

void read_sizes(const TomlTable& table, AcceptanceProfile& profile) {
  const auto size = [&table](std::string_view key) {
    return table.find(key) == nullptr ? 0 : table.get_int_in(key, 1, most_bytes);
  };
  profile.latency_up_to_bytes = size("latency_up_to_bytes");
  profile.bandwidth_from_bytes = size("bandwidth_from_bytes");
  const bool both = profile.latency_up_to_bytes > 0 && profile.bandwidth_from_bytes > 0;
  if (both && profile.latency_up_to_bytes >= profile.bandwidth_from_bytes) {
    table.fail_at("bandwidth_from_bytes", "bandwidth_from_bytes must be above latency_up_to_bytes");
  }
  // Without it no size is on the plateau.
  if (profile.bandwidth_from_bytes == 0) profile.bandwidth_from_bytes = most_bytes + 1;
}

AcceptanceProfile acceptance_profile_from_toml(const toml::table& toml, const std::string& source) {
  const TomlTable table(toml, source, profile_keys);
  AcceptanceProfile profile{.name = table.get_string("name"),
                            .device = table.get_string("device"),
                            .description = table.find_string("description").value_or(""),
                            .tried_on_hardware = table.get_bool("tried_on_hardware", false)};
  profile.source = source;
  check_one_of(table,
               "device",
               std::optional(profile.device),
               std::to_array<std::string_view>({"cpu", "cuda"}));
  read_sizes(table, profile);
  if (table.find("cohort_tolerance") != nullptr) {
    profile.cohort_tolerance = table.get_number_in("cohort_tolerance", 0.0, 0.99);
  }
  if (table.find("flaky_allowed") != nullptr) {
    profile.flaky_allowed = static_cast<int>(table.get_int_in("flaky_allowed", 0, 1 << 20));
  }
  if (const toml::table* needs = table.find_table("requires")) {
    profile.requirements = read_requirements(*needs, source);
  }
  if (const toml::node* list = table.find("expect")) {
    const toml::array* array = list->as_array();
    if (array == nullptr) table.fail_at("expect", "expect must be tables: [[expect]]");
    for (const toml::node& node : *array) {
      if (!node.is_table()) table.fail_at("expect", "expect must be tables: [[expect]]");
      read_expectations(TomlTable(*node.as_table(), source, expect_keys), profile);
    }
  }
  return profile;
}

toml::table to_table(const Requirements& needs) {
  toml::table table;
  const auto put = [&table](std::string_view key, const auto& value) {
    if (value) table.insert_or_assign(key, *value);
  };
  put("devices_per_host", needs.devices_per_host);
  put("device_name", needs.device_name);
  put("device_memory_gb", needs.device_memory_gb);
  put("host_memory_gb", needs.host_memory_gb);
  put("dev_shm_gb", needs.dev_shm_gb);
  put("ecc", needs.ecc);
  put("clock_mhz", needs.clock_mhz);
  return table;
}

toml::table to_table(const Expectation& expectation) {
  const FigureKey& key = expectation.key;
  toml::table table{{"figure", key.figure}};
  const auto put = [&table](std::string_view name, const auto& value) {
    if (value) table.insert_or_assign(name, *value);
  };
  put("op", key.op);
  put("ranks", key.ranks);
  put("bytes", key.bytes);
  put("scope", key.scope);
  put("algorithm", key.algorithm);
  put("dtype", key.dtype);
  put("model", key.model);
  table.insert_or_assign("expected", expectation.expected);
  table.insert_or_assign("tolerance", expectation.tolerance);
  table.insert_or_assign("source", expectation.source);
  return table;
}

}  // namespace

AcceptanceProfile read_acceptance_profile(const std::string& name_or_path) {
  const std::filesystem::path path = preset_or_file("acceptance", name_or_path);
  return acceptance_profile_from_toml(read_toml_file(path), path.string());
}

std::string acceptance_toml(const AcceptanceProfile& profile) {
  toml::table table{{"name", profile.name},
                    {"device", profile.device},
                    {"description", profile.description},
                    {"tried_on_hardware", profile.tried_on_hardware},
                    {"cohort_tolerance", profile.cohort_tolerance},
                    {"flaky_allowed", profile.flaky_allowed}};
  if (profile.latency_up_to_bytes > 0) {
    table.insert_or_assign("latency_up_to_bytes", profile.latency_up_to_bytes);
  }
  if (profile.bandwidth_from_bytes > 0 && profile.bandwidth_from_bytes <= most_bytes) {
    table.insert_or_assign("bandwidth_from_bytes", profile.bandwidth_from_bytes);
  }
  if (toml::table needs = to_table(profile.requirements); !needs.empty()) {
    table.insert_or_assign("requires", std::move(needs));
  }
  toml::array list;
  list.reserve(profile.expectations.size());
  for (const Expectation& expectation : profile.expectations) list.push_back(to_table(expectation));
  table.insert_or_assign("expect", std::move(list));
  return toml_text(table);
}

}  // namespace testbed
