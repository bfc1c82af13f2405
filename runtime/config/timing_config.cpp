// Calibration from and to TOML: [timing] of device and link files.
#include <array>

#include "parallel/comm/communicator.hpp"
#include "runtime/config/number_fields.hpp"
#include "runtime/config/spec_tables.hpp"

namespace testbed {
namespace {

constexpr double us = 1e-6;
constexpr double giga = 1e9;

constexpr std::array<NumberField<OpTiming>, 3> op_fields{{
    {"compute_efficiency", &OpTiming::compute_efficiency, 1.0, 1e-6, 1.0},
    {"memory_efficiency", &OpTiming::memory_efficiency, 1.0, 1e-6, 1.0},
    {"start_us", &OpTiming::start_s, us},
}};

struct OpField {
  std::string_view key;
  OpTiming DeviceTiming::*member;
};
constexpr std::array<OpField, 5> device_ops{{
    {"linear", &DeviceTiming::linear},
    {"linear_fp8", &DeviceTiming::linear_fp8},
    {"attention_decode", &DeviceTiming::attention_decode},
    {"attention_prefill", &DeviceTiming::attention_prefill},
    {"elementwise", &DeviceTiming::elementwise},
}};
constexpr std::array<NumberField<DeviceTiming>, 4> device_fields{{
    {"tile_fill_k", &DeviceTiming::tile_fill_k},
    {"decode_unit_us", &DeviceTiming::decode_unit_s, us},
    {"decode_split_us", &DeviceTiming::decode_split_s, us},
    {"layer_overhead_us", &DeviceTiming::layer_overhead_s, us},
}};

constexpr std::array<NumberField<ProtocolTiming>, 6> protocol_fields{{
    {"start_us", &ProtocolTiming::start_s, us},
    {"step_us", &ProtocolTiming::step_s, us},
    {"gb_s", &ProtocolTiming::bytes_per_s, giga},
    {"sharing", &ProtocolTiming::sharing},
    {"copy_us_per_mb", &ProtocolTiming::copy_s_per_byte, us / 1e6},
    {"fill_us", &ProtocolTiming::fill_s, us},
}};
ProtocolTiming protocol_from_table(const toml::table& toml, const std::string& source) {
  const auto keys = field_keys<ProtocolTiming>(
      protocol_fields, {"protocol", "max_nodes", "max_bytes", "most_payload_bytes"});
  const TomlTable table(toml, source, keys);
  ProtocolTiming protocol;
  protocol.name = table.find_string("protocol").value_or("");
  if (table.find("max_nodes") != nullptr)
    protocol.max_nodes = static_cast<int>(table.get_int_in("max_nodes", 1, INT32_MAX));
  if (table.find("max_bytes") != nullptr)
    protocol.max_bytes = table.get_int_in("max_bytes", 1, INT64_MAX);
  if (table.find("most_payload_bytes") != nullptr)
    protocol.most_payload_bytes = table.get_int_in("most_payload_bytes", 1, INT64_MAX);
  read_numbers<ProtocolTiming>(table, protocol_fields, protocol);
  return protocol;
}

// By rising max_nodes, then max_bytes; only the last may have no limit, or the ones after it would
// never be used.
std::vector<ProtocolTiming> protocols_from_array(const toml::node& node,
                                                 const TomlTable& timing,
                                                 std::string_view key) {
  std::vector<ProtocolTiming> protocols;
  if (!node.is_array_of_tables())
    timing.fail_at(key, fmt::format("{0} must be tables [[timing.\"{0}\"]]", key));
  protocols.reserve(node.as_array()->size());
  for (const toml::node& protocol : *node.as_array()) {
    const bool unlimited =
        !protocols.empty() && protocols.back().max_bytes == 0 && protocols.back().max_nodes == 0;
    if (unlimited)
      timing.fail(protocol.source().begin,
                  "the protocol before this one has no max_bytes and no max_nodes");
    protocols.push_back(protocol_from_table(*protocol.as_table(), timing.source()));
    if (protocols.size() == 1) continue;
    const ProtocolTiming& before = protocols[protocols.size() - 2];
    const int64_t limit = protocols.back().max_bytes;
    if (protocols.back().max_nodes == before.max_nodes && limit != 0 && limit <= before.max_bytes)
      timing.fail(protocol.source().begin, "max_bytes must rise from protocol to protocol");
  }
  return protocols;
}

}  // namespace

DeviceTiming device_timing_from_table(const toml::table& toml, const std::string& source) {
  auto keys = field_keys<DeviceTiming>(device_fields, {"source"});
  for (const OpField& op : device_ops) keys.push_back(op.key);
  const TomlTable table(toml, source, keys);
  DeviceTiming timing;
  timing.source = table.get_string("source");
  read_numbers<DeviceTiming>(table, device_fields, timing);
  const auto op_keys = field_keys<OpTiming>(op_fields, {});
  for (const OpField& op : device_ops)
    if (const toml::table* values = table.find_table(op.key); values != nullptr)
      read_numbers<OpTiming>(TomlTable(*values, source, op_keys), op_fields, timing.*op.member);
  return timing;
}

toml::table device_timing_to_table(const DeviceTiming& timing) {
  toml::table table{{"source", timing.source}};
  write_numbers<DeviceTiming>(timing, device_fields, table);
  for (const OpField& op : device_ops) {
    toml::table values;
    write_numbers<OpTiming>(timing.*op.member, op_fields, values);
    if (!values.empty()) table.insert_or_assign(op.key, std::move(values));
  }
  return table;
}

std::vector<std::string> collective_algorithms() {
  std::vector<std::string> names;
  for (int op = 0; op <= static_cast<int>(CommOp::recv); ++op)
    for (const std::string_view algorithm : algorithm_names)
      if (algorithm != algorithm_name(CommAlgorithm::none))
        names.push_back(fmt::format("{}/{}", comm_op_name(static_cast<CommOp>(op)), algorithm));
  // The two ways of an exchange of rows (parallel/comm/row_exchange.cpp).
  for (const std::string_view way : {"dispatch", "combine"})
    for (const CommAlgorithm kernel : {CommAlgorithm::low_latency, CommAlgorithm::hierarchical})
      names.push_back(fmt::format("{}/{}", way, algorithm_name(kernel)));
  return names;
}

LinkTiming link_timing_from_table(const toml::table& toml, const std::string& source) {
  const std::vector<std::string> names = collective_algorithms();
  std::vector<std::string_view> keys(names.begin(), names.end());
  keys.emplace_back("source");
  const TomlTable table(toml, source, keys);
  LinkTiming timing;
  timing.source = table.get_string("source");
  for (const auto& [key, node] : toml)
    if (key.str() != "source")
      timing.of[std::string(key.str())] = protocols_from_array(node, table, key.str());
  return timing;
}

toml::table link_timing_to_table(const LinkTiming& timing) {
  toml::table table{{"source", timing.source}};
  for (const auto& [key, protocols] : timing.of) {
    toml::array array;
    array.reserve(protocols.size());
    for (const ProtocolTiming& protocol : protocols) {
      toml::table values;
      if (!protocol.name.empty()) values.insert_or_assign("protocol", protocol.name);
      if (protocol.max_nodes != 0) values.insert_or_assign("max_nodes", protocol.max_nodes);
      if (protocol.max_bytes != 0) values.insert_or_assign("max_bytes", protocol.max_bytes);
      if (protocol.most_payload_bytes != 0)
        values.insert_or_assign("most_payload_bytes", protocol.most_payload_bytes);
      write_numbers<ProtocolTiming>(protocol, protocol_fields, values);
      array.push_back(std::move(values));
    }
    table.insert_or_assign(key, std::move(array));
  }
  return table;
}

}  // namespace testbed
