// ClusterSpec from and to TOML.
#include "runtime/config/cluster_config.hpp"

#include <array>

#include "runtime/config/device_config.hpp"
#include "runtime/config/link_config.hpp"
#include "runtime/config/spec_tables.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

constexpr double giga = 1e9;
constexpr int max_base_depth = 8;

constexpr std::array<std::string_view, 8> cluster_keys{
    "name", "description", "base", "device", "link", "n_nodes", "node", "fabric"};
constexpr std::array<std::string_view, 6> node_keys{"n_devices",
                                                    "topology",
                                                    "in_switch_reduction",
                                                    "devices_per_socket",
                                                    "socket_gb_s",
                                                    "shared_memory_gb_s"};
constexpr std::array<std::string_view, 4> fabric_keys{
    "nic", "devices_per_nic", "nodes_per_leaf_switch", "oversubscription"};

// A preset's name, or the table itself.
template <typename Spec>
void read_part(const TomlTable& table,
               std::string_view key,
               Spec (*read_preset)(const std::string&),
               Spec (*from_table)(const toml::table&, const std::string&),
               Spec& part) {
  const toml::node* node = table.find(key);
  if (node == nullptr) return;
  if (node->is_table()) {
    part = from_table(*node->as_table(), table.source());
    return;
  }
  const auto name = table.find_as<std::string>(key, "a preset's name or a table");
  part = table.located(key, [&] { return read_preset(*name); });
}

void read_int(const TomlTable& table, std::string_view key, int64_t highest, int& value) {
  if (table.find(key) != nullptr) value = static_cast<int>(table.get_int_in(key, 1, highest));
}

void read_number(
    const TomlTable& table, std::string_view key, double lowest, double unit, double& value) {
  if (table.find(key) != nullptr) value = table.get_number_in(key, lowest, 1e6) * unit;
}

void read_topology(const TomlTable& table, NodeSpec& node) {
  const std::optional<std::string> name = table.find_string("topology");
  if (!name) return;
  if (*name != "full" && *name != "tree")
    table.fail_at("topology",
                  fmt::format("topology {} is not one of full, tree", in_quotes(*name)));
  node.topology = *name == "full" ? NodeTopology::full : NodeTopology::tree;
}

void check_node(const TomlTable& table, const NodeSpec& node) {
  if (node.topology == NodeTopology::full) {
    for (const std::string_view key : {"devices_per_socket", "socket_gb_s"})
      if (table.find(key) != nullptr)
        table.fail_at(key, fmt::format("{} has no meaning in a full topology", key));
    return;
  }
  if (node.in_switch_reduction)
    table.fail_at("in_switch_reduction", "a tree has no switch that reduces");
  if (node.n_devices % node.devices_per_socket != 0)
    table.fail_at("devices_per_socket",
                  fmt::format("{} devices are not a multiple of devices_per_socket = {}",
                              node.n_devices,
                              node.devices_per_socket));
  if (node.n_devices > node.devices_per_socket && node.socket_bytes_per_s == 0.0)
    table.fail_at("socket_gb_s", "socket_gb_s is missing: the devices are on several sockets");
}

void read_node(const toml::table& toml, const std::string& source, NodeSpec& node) {
  const TomlTable table(toml, source, node_keys);
  read_int(table, "n_devices", 1024, node.n_devices);
  read_topology(table, node);
  node.in_switch_reduction = table.get_bool("in_switch_reduction", node.in_switch_reduction);
  read_int(table, "devices_per_socket", 1024, node.devices_per_socket);
  read_number(table, "socket_gb_s", 1e-3, giga, node.socket_bytes_per_s);
  read_number(table, "shared_memory_gb_s", 1e-3, giga, node.shared_memory_bytes_per_s);
  check_node(table, node);
}

void read_fabric(const toml::table& toml, const std::string& source, FabricSpec& fabric) {
  const TomlTable table(toml, source, fabric_keys);
  read_part(table, "nic", read_link, link_from_table, fabric.nic);
  if (fabric.nic.bytes_per_s == 0.0) table.fail_at("nic", "nic is missing");
  read_int(table, "devices_per_nic", 1024, fabric.devices_per_nic);
  read_int(table, "nodes_per_leaf_switch", 1024, fabric.nodes_per_leaf_switch);
  read_number(table, "oversubscription", 1.0, 1.0, fabric.oversubscription);
}

// What must hold of the whole, after `base` and the file's own keys.
void check_cluster(const TomlTable& table, const ClusterSpec& cluster) {
  if (cluster.device.name.empty()) table.fail_at("device", "device is missing");
  if (cluster.node.link.name.empty()) table.fail_at("link", "link is missing");
  if (cluster.n_nodes > 1 && !cluster.fabric)
    table.fail_at("n_nodes", "several nodes need a [fabric]");
  if (cluster.fabric && cluster.node.n_devices % cluster.fabric->devices_per_nic != 0)
    table.fail_at("fabric",
                  fmt::format("{} devices of a node are not a multiple of devices_per_nic = {}",
                              cluster.node.n_devices,
                              cluster.fabric->devices_per_nic));
}

ClusterSpec cluster_from_file(const std::string& name_or_path, int depth);

ClusterSpec cluster_from_table(const toml::table& toml, const std::string& source, int depth) {
  const TomlTable table(toml, source, cluster_keys);
  ClusterSpec cluster;
  if (const auto base = table.find_string("base")) {
    if (depth == max_base_depth) table.fail_at("base", "bases lie too deep, or in a circle");
    cluster = table.located("base", [&] { return cluster_from_file(*base, depth + 1); });
  }
  cluster.name = table.get_string("name");
  cluster.description = table.get_string("description");
  read_part(table, "device", read_device, device_from_table, cluster.device);
  read_part(table, "link", read_link, link_from_table, cluster.node.link);
  read_int(table, "n_nodes", 1 << 20, cluster.n_nodes);
  if (const toml::table* node = table.find_table("node")) read_node(*node, source, cluster.node);
  if (const toml::table* fabric = table.find_table("fabric")) {
    if (!cluster.fabric) cluster.fabric.emplace();
    read_fabric(*fabric, source, *cluster.fabric);
  }
  check_cluster(table, cluster);
  return cluster;
}

ClusterSpec cluster_from_file(const std::string& name_or_path, int depth) {
  const std::filesystem::path path = preset_or_file("clusters", name_or_path);
  return cluster_from_table(read_toml_file(path), path.string(), depth);
}

toml::table node_to_table(const NodeSpec& node) {
  const bool tree = node.topology == NodeTopology::tree;
  toml::table table{{"n_devices", node.n_devices}, {"topology", tree ? "tree" : "full"}};
  if (node.in_switch_reduction) table.insert_or_assign("in_switch_reduction", true);
  if (tree) table.insert_or_assign("devices_per_socket", node.devices_per_socket);
  if (tree && node.socket_bytes_per_s > 0)
    table.insert_or_assign("socket_gb_s", node.socket_bytes_per_s / giga);
  if (node.shared_memory_bytes_per_s > 0)
    table.insert_or_assign("shared_memory_gb_s", node.shared_memory_bytes_per_s / giga);
  return table;
}

toml::table fabric_to_table(const FabricSpec& fabric) {
  return toml::table{{"nic", link_to_table(fabric.nic)},
                     {"devices_per_nic", fabric.devices_per_nic},
                     {"nodes_per_leaf_switch", fabric.nodes_per_leaf_switch},
                     {"oversubscription", fabric.oversubscription}};
}

}  // namespace

ClusterSpec read_cluster(const std::string& name_or_path) {
  return cluster_from_file(name_or_path, 0);
}

std::string cluster_toml(const ClusterSpec& cluster) {
  toml::table table{{"name", cluster.name},
                    {"description", cluster.description},
                    {"n_nodes", cluster.n_nodes},
                    {"device", device_to_table(cluster.device)},
                    {"link", link_to_table(cluster.node.link)},
                    {"node", node_to_table(cluster.node)}};
  if (cluster.fabric) table.insert_or_assign("fabric", fabric_to_table(*cluster.fabric));
  return toml_text(table);
}

ClusterSpec with_links(ClusterSpec cluster,
                       std::optional<double> link_gb_s,
                       std::optional<double> link_us) {
  LinkSpec& link = cluster.node.link;
  if (link_gb_s) link = at_line_rate(link, *link_gb_s * giga);
  if (link_us) {
    // An ideal link does every algorithm; a calibrated one those that it has times for.
    if (link.timing.of.empty()) {
      for (const std::string& name : collective_algorithms()) link.timing.of[name].emplace_back();
    }
    for (auto& [name, protocols] : link.timing.of) {
      for (ProtocolTiming& protocol : protocols) protocol.step_s = *link_us * 1e-6;
    }
  }
  if (link_gb_s || link_us) {
    link.timing.source = "those of " + link.name +
                         ", changed by --link-gb-s or --link-us: no table says how far they hold";
  }
  return cluster;
}

}  // namespace testbed
