// What device and cluster files mean: bases, inline tables, carried timing, round trips, --link-*.
#include "runtime/config/link_config.hpp"
#include "tests/unit/cluster_presets_support.hpp"

namespace testbed {
namespace {

using test::cluster_error;
using test::cluster_from;
using test::config_error;
using test::device_error;
using test::device_from;
using test::preset_names;
using test::preset_text;
using test::replaced;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Files hold microseconds and GB/s: seconds and bytes/s read back equal to rounding.
void expect_equal(const OpTiming& a, const OpTiming& b) {
  EXPECT_DOUBLE_EQ(a.compute_efficiency, b.compute_efficiency);
  EXPECT_DOUBLE_EQ(a.memory_efficiency, b.memory_efficiency);
  EXPECT_DOUBLE_EQ(a.start_s, b.start_s);
}

void expect_equal(const DeviceTiming& a, const DeviceTiming& b) {
  for (auto op : {&DeviceTiming::linear,
                  &DeviceTiming::linear_fp8,
                  &DeviceTiming::attention_decode,
                  &DeviceTiming::attention_prefill,
                  &DeviceTiming::elementwise})
    expect_equal(a.*op, b.*op);
  EXPECT_DOUBLE_EQ(a.tile_fill_k, b.tile_fill_k);
  EXPECT_DOUBLE_EQ(a.decode_unit_s, b.decode_unit_s);
  EXPECT_DOUBLE_EQ(a.decode_split_s, b.decode_split_s);
  EXPECT_DOUBLE_EQ(a.layer_overhead_s, b.layer_overhead_s);
  EXPECT_EQ(a.source, b.source);
}

void expect_equal(const ProtocolTiming& a, const ProtocolTiming& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.max_bytes, b.max_bytes);
  EXPECT_DOUBLE_EQ(a.start_s, b.start_s);
  EXPECT_DOUBLE_EQ(a.step_s, b.step_s);
  EXPECT_DOUBLE_EQ(a.bytes_per_s, b.bytes_per_s);
  EXPECT_DOUBLE_EQ(a.sharing, b.sharing);
  EXPECT_DOUBLE_EQ(a.copy_s_per_byte, b.copy_s_per_byte);
  EXPECT_DOUBLE_EQ(a.fill_s, b.fill_s);
}

void expect_equal(const LinkSpec& a, const LinkSpec& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_DOUBLE_EQ(a.bytes_per_s, b.bytes_per_s);
  EXPECT_EQ(a.timing.source, b.timing.source);
  ASSERT_EQ(a.timing.of.size(), b.timing.of.size());
  for (const auto& [key, protocols] : a.timing.of) {
    ASSERT_EQ(protocols.size(), b.timing.of.at(key).size()) << key;
    for (size_t i = 0; i < protocols.size(); ++i)
      expect_equal(protocols[i], b.timing.of.at(key)[i]);
  }
}

void expect_equal(const DeviceSpec& a, const DeviceSpec& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.description, b.description);
  EXPECT_EQ(a.memory_bytes, b.memory_bytes);
  EXPECT_DOUBLE_EQ(a.memory_bytes_per_s, b.memory_bytes_per_s);
  ASSERT_EQ(a.peak_flops.size(), b.peak_flops.size());
  for (const auto& [type, peak] : a.peak_flops)
    EXPECT_DOUBLE_EQ(peak, b.peak_flops.at(type)) << a.name << ' ' << math_name(type);
  EXPECT_EQ(a.chip, b.chip) << a.name;
  expect_equal(a.timing, b.timing);
}

void expect_equal(const ClusterSpec& a, const ClusterSpec& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.description, b.description);
  expect_equal(a.device, b.device);
  EXPECT_EQ(a.node.n_devices, b.node.n_devices);
  EXPECT_EQ(a.node.topology, b.node.topology);
  expect_equal(a.node.link, b.node.link);
  EXPECT_EQ(a.node.in_switch_reduction, b.node.in_switch_reduction);
  EXPECT_EQ(a.node.devices_per_socket, b.node.devices_per_socket);
  EXPECT_DOUBLE_EQ(a.node.socket_bytes_per_s, b.node.socket_bytes_per_s);
  EXPECT_DOUBLE_EQ(a.node.shared_memory_bytes_per_s, b.node.shared_memory_bytes_per_s);
  EXPECT_EQ(a.n_nodes, b.n_nodes);
  ASSERT_EQ(a.fabric.has_value(), b.fabric.has_value());
  if (!a.fabric) return;
  expect_equal(a.fabric->nic, b.fabric->nic);
  EXPECT_EQ(a.fabric->devices_per_nic, b.fabric->devices_per_nic);
  EXPECT_EQ(a.fabric->nodes_per_leaf_switch, b.fabric->nodes_per_leaf_switch);
  EXPECT_DOUBLE_EQ(a.fabric->oversubscription, b.fabric->oversubscription);
}

constexpr const char* calibrated_timing = R"(
[timing]
source = "a table, 4 %"
tile_fill_k = 256
decode_unit_us = 1.963
decode_split_us = 0.7
layer_overhead_us = 2.5
[timing.linear]
compute_efficiency = 0.77
memory_efficiency = 0.835
start_us = 4.2
)";

// The H100 with timing of our own.
std::string calibrated_h100() {
  const std::string text = preset_text("devices", "h100-sxm");
  return text.substr(0, text.find("\n[timing]")) + calibrated_timing;
}

constexpr const char* calibrated_link = R"(
[link]
name = "mine"
gb_s = 450
[link.timing]
source = "a table, 6 %"
[[link.timing."all_reduce/ring"]]
protocol = "ll128"
max_bytes = 1048576
start_us = 4
step_us = 0.5
gb_s = 300
[[link.timing."all_reduce/ring"]]
protocol = "simple"
start_us = 5
step_us = 0.75
gb_s = 360
sharing = 0.3
copy_us_per_mb = 1.7
fill_us = 3.5
)";

std::string calibrated_cluster() {
  return std::string("name = \"c\"\ndescription = \"d\"\ndevice = \"h100-sxm\"\n") +
         calibrated_link;
}

TEST(RoundTrip, every_device_and_cluster_reads_back_equal) {
  for (const std::string& name : preset_names("devices")) {
    const DeviceSpec device = read_device(name);
    SCOPED_TRACE(name);
    expect_equal(device_from(device_toml(device)), device);
  }
  for (const std::string& name : preset_names("clusters")) {
    const ClusterSpec cluster = read_cluster(name);
    SCOPED_TRACE(name);
    expect_equal(cluster_from(cluster_toml(cluster)), cluster);
  }
}

TEST(RoundTrip, calibration_and_probed_machines_too) {
  const DeviceSpec device = device_from(calibrated_h100());
  EXPECT_DOUBLE_EQ(device.timing.linear.compute_efficiency, 0.77);
  EXPECT_DOUBLE_EQ(device.timing.linear.start_s, 4.2e-6);
  EXPECT_DOUBLE_EQ(device.timing.tile_fill_k, 256);
  EXPECT_DOUBLE_EQ(device.timing.decode_unit_s, 1.963e-6);
  EXPECT_DOUBLE_EQ(device.timing.decode_split_s, 0.7e-6);
  EXPECT_DOUBLE_EQ(device.timing.layer_overhead_s, 2.5e-6);
  EXPECT_EQ(device.timing.elementwise, OpTiming{});
  expect_equal(device_from(device_toml(device)), device);

  ClusterSpec probed = cluster_from(calibrated_cluster());
  probed.device = {.name = "cpu", .description = "4 cores, \"quoted\"", .memory_bytes = 1LL << 33};
  probed.device.memory_bytes_per_s = 12.3e9;
  probed.device.peak_flops[MathType::f32] = 61e9;
  probed.device.timing.source = "probed";
  probed.node.n_devices = 2;
  probed.node.shared_memory_bytes_per_s = 17e9;
  expect_equal(cluster_from(cluster_toml(probed)), probed);
}

TEST(ClusterConfig, inline_tables) {
  const ClusterSpec inline_link = cluster_from(calibrated_cluster());
  const auto& protocols = inline_link.node.link.timing.of.at("all_reduce/ring");
  ASSERT_EQ(protocols.size(), 2U);
  EXPECT_EQ(protocols[0].name, "ll128");
  EXPECT_EQ(protocols[0].max_bytes, 1 << 20);
  EXPECT_DOUBLE_EQ(protocols[1].bytes_per_s, 360e9);
  EXPECT_DOUBLE_EQ(protocols[1].sharing, 0.3);
  EXPECT_DOUBLE_EQ(protocols[1].copy_s_per_byte, 1.7e-12);
  EXPECT_DOUBLE_EQ(protocols[1].fill_s, 3.5e-6);
  EXPECT_EQ(inline_link.node.n_devices, 8);
  EXPECT_EQ(inline_link.node.topology, NodeTopology::full);
  EXPECT_FALSE(inline_link.fabric);
  expect_equal(inline_link.device, read_device("h100-sxm"));
}

TEST(ClusterConfig, a_base_gives_what_the_file_leaves_out) {
  const ClusterSpec dgx = read_cluster("dgx-h100");
  const ClusterSpec ndr = read_cluster("h100-ndr-16");
  EXPECT_EQ(ndr.n_devices(), 128);
  expect_equal(ndr.device, dgx.device);
  EXPECT_EQ(ndr.node.link, dgx.node.link);
  EXPECT_TRUE(ndr.node.in_switch_reduction);
  ASSERT_TRUE(ndr.fabric);
  EXPECT_DOUBLE_EQ(ndr.fabric->nic.bytes_per_s, 50e9);
  const ClusterSpec halved = cluster_from(
      "name = \"x\"\ndescription = \"d\"\nbase = \"h100-ndr\"\n[fabric]\noversubscription = 2.0");
  EXPECT_DOUBLE_EQ(halved.fabric->oversubscription, 2.0);
  EXPECT_EQ(halved.fabric->nic, ndr.fabric->nic);

  const test::TomlFile circle("");
  std::ofstream(circle.path()) << "name = \"x\"\ndescription = \"d\"\nbase = \"" << circle.path()
                               << '"';
  EXPECT_THAT(config_error([&] { read_cluster(circle.path()); }),
              HasSubstr("bases lie too deep, or in a circle"));
}

TEST(Timing, mistakes_name_file_and_line) {
  EXPECT_THAT(device_error(replaced(calibrated_h100(), "= 0.835", "= 1.2")),
              HasSubstr("memory_efficiency is 1.2; expected 1e-06 to 1"));
  EXPECT_THAT(device_error(replaced(calibrated_h100(), "timing.linear", "timing.linaer")),
              HasSubstr("did you mean linear?"));
  EXPECT_THAT(cluster_error(replaced(calibrated_cluster(), "max_bytes = 1048576", "")),
              HasSubstr("the protocol before this one has no max_bytes"));
  EXPECT_THAT(cluster_error(replaced(calibrated_cluster(), "all_reduce/ring", "all_reduce/rng")),
              HasSubstr("did you mean all_reduce/ring?"));
  EXPECT_THAT(device_error("timing_from = \"h100-sxm\"\n" + calibrated_h100()),
              HasSubstr(":1: [timing] is given as well"));
}

TEST(Timing, is_carried_from_a_device_that_has_its_own) {
  const std::string h200 = preset_text("devices", "h200");
  const DeviceTiming carried = device_from(h200).timing;
  const DeviceTiming own = read_device("h100-sxm").timing;
  EXPECT_THAT(carried.source, StartsWith("carried from h100-sxm: "));
  EXPECT_THAT(carried.source, HasSubstr(own.source));
  EXPECT_EQ(carried.linear, own.linear);
  EXPECT_THAT(
      device_error(replaced(h200, "timing_from = \"h100-sxm\"", "timing_from = \"h100-pcie\"")),
      HasSubstr("h100-pcie has no timing of its own to carry"));
  const LinkSpec nvlink4 = read_link("nvlink4");
  const LinkSpec nvlink5 = read_link("nvlink5");
  EXPECT_EQ(at_line_rate(nvlink4, 900e9).timing.of, nvlink5.timing.of);
}

TEST(WithLinks, line_rate_scales_calibrated_bandwidths) {
  const ClusterSpec cluster = cluster_from(calibrated_cluster());
  const LinkSpec link = with_links(cluster, 225.0, std::nullopt).node.link;
  EXPECT_DOUBLE_EQ(link.bytes_per_s, 225e9);
  const auto& protocols = link.timing.of.at("all_reduce/ring");
  EXPECT_DOUBLE_EQ(protocols[0].bytes_per_s, 150e9);
  EXPECT_DOUBLE_EQ(protocols[1].bytes_per_s, 180e9);
  EXPECT_DOUBLE_EQ(protocols[1].step_s, 0.75e-6);
  EXPECT_DOUBLE_EQ(protocols[1].fill_s, 3.5e-6);
}

TEST(WithLinks, latency_is_that_of_every_step_of_every_algorithm) {
  const ClusterSpec cluster = cluster_from(calibrated_cluster());
  const LinkSpec link = with_links(cluster, std::nullopt, 2.0).node.link;
  EXPECT_DOUBLE_EQ(link.bytes_per_s, 450e9);
  for (const ProtocolTiming& protocol : link.timing.of.at("all_reduce/ring"))
    EXPECT_DOUBLE_EQ(protocol.step_s, 2e-6);
  EXPECT_DOUBLE_EQ(link.timing.of.at("all_reduce/ring")[0].bytes_per_s, 300e9);
  EXPECT_DOUBLE_EQ(link.timing.of.at("all_reduce/ring")[0].start_s, 4e-6);
  // A calibrated link does not take up algorithms that it has no times for; an ideal one does all.
  EXPECT_EQ(link.timing.of.size(), cluster.node.link.timing.of.size());
  ClusterSpec ideal = cluster;
  ideal.node.link.timing = {};
  const LinkSpec stepped = with_links(ideal, std::nullopt, 2.0).node.link;
  for (const char* name : {"all_reduce/one-shot", "send/direct", "all_to_all/direct"})
    EXPECT_EQ(stepped.timing.of.at(name), std::vector<ProtocolTiming>{{.step_s = 2e-6}}) << name;
  EXPECT_THAT(link.timing.source, testing::HasSubstr("--link-us"));
}

TEST(WithLinks, leaves_the_fabric_and_the_rest_alone) {
  const ClusterSpec ndr = read_cluster("h100-ndr");
  expect_equal(with_links(ndr, std::nullopt, std::nullopt), ndr);
  EXPECT_EQ(with_links(ndr, 100.0, 5.0).fabric->nic, ndr.fabric->nic);
  const ClusterSpec pcie = read_cluster("h100-pcie-8");
  EXPECT_DOUBLE_EQ(with_links(pcie, 128.0, 1.0).node.socket_bytes_per_s,
                   pcie.node.socket_bytes_per_s);
}

}  // namespace
}  // namespace testbed
