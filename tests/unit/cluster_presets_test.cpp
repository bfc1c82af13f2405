// Presets of devices, links and clusters: every file is read, its figures are those that
// arithmetic over datasheets gives, and what a file must not say is refused with file:line.
#include <fmt/format.h>

#include "runtime/config/link_config.hpp"
#include "tests/unit/cluster_presets_support.hpp"

namespace testbed {
namespace {

using test::cluster_error;
using test::config_error;
using test::device_error;
using test::preset_names;
using test::preset_text;
using test::replaced;
using testing::AllOf;
using testing::HasSubstr;

TEST(DevicePresets, all_are_read_and_named_by_their_file) {
  EXPECT_EQ(preset_names("devices").size(), 13U);
  for (const std::string& name : preset_names("devices")) {
    const DeviceSpec device = read_device(name);
    EXPECT_EQ(device.name, name);
    EXPECT_GT(device.chip.n_sm, 0) << name;
    EXPECT_FALSE(device.timing.source.empty()) << name;
  }
}

TEST(LinkPresets, line_rates_in_one_direction) {
  const std::map<std::string, double> gb_s{{"nvlink1", 80},
                                           {"nvlink2", 150},
                                           {"nvlink3", 300},
                                           {"nvlink4", 450},
                                           {"nvlink5", 900},
                                           {"pcie3-x16", 15.75},
                                           {"pcie4-x16", 32},
                                           {"pcie5-x16", 64},
                                           {"hdr-ib", 25},
                                           {"ndr-ib", 50},
                                           {"100gbe", 12.5},
                                           {"400gbe", 50}};
  EXPECT_EQ(preset_names("links").size(), gb_s.size());
  for (const auto& [name, rate] : gb_s) {
    const LinkSpec link = read_link(name);
    EXPECT_EQ(link.name, name);
    EXPECT_DOUBLE_EQ(link.bytes_per_s, rate * 1e9) << name;
    EXPECT_FALSE(link.timing.source.empty()) << name;
  }
}

TEST(ClusterPresets, all_are_read_and_named_by_their_file) {
  EXPECT_GE(preset_names("clusters").size(), 24U);
  for (const std::string& name : preset_names("clusters")) {
    const ClusterSpec cluster = read_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_FALSE(cluster.description.empty()) << name;
  }
}

// Ridges of ../shared/ARITHMETIC.md, in FLOP per byte, to the digits stated there.
TEST(DevicePresets, ridges) {
  struct Ridge {
    const char* device;
    MathType type;
    double flop_per_byte;
    double half_digit;
  };
  constexpr Ridge ridges[] = {{"a100-80", MathType::bf16, 153, 0.5},
                              {"h100-sxm", MathType::bf16, 295, 0.5},
                              {"h200", MathType::bf16, 206, 0.5},
                              {"v100", MathType::f16, 139, 0.5},
                              {"p100", MathType::f16, 29, 0.5},
                              {"b200", MathType::bf16, 281, 0.5},
                              {"h100-sxm", MathType::fp8, 590.7, 0.05},
                              {"h100-sxm", MathType::f32, 20.0, 0.05}};
  for (const Ridge& ridge : ridges)
    EXPECT_NEAR(read_device(ridge.device).ridge_flop_per_byte(ridge.type),
                ridge.flop_per_byte,
                ridge.half_digit)
        << ridge.device;
  const DeviceSpec h100 = read_device("h100-sxm");
  EXPECT_NEAR(h100.peak_flops.at(MathType::bf16) / h100.peak_flops.at(MathType::f32), 14.8, 0.05);
}

// D27: the dense bf16 peak of each SKU.
TEST(DevicePresets, dense_bf16_peaks) {
  const std::map<std::string, double> tflops{{"a100-40", 312},
                                             {"a100-80", 312},
                                             {"h100-sxm", 989},
                                             {"h100-pcie", 756},
                                             {"h100-nvl", 835.5},
                                             {"h200", 989},
                                             {"b200", 2250},
                                             {"gb200", 2500},
                                             {"l40s", 362},
                                             {"rtx-pro-6000", 503.8},
                                             {"rtx-4090", 165.2}};
  for (const auto& [name, peak] : tflops)
    EXPECT_NEAR(read_device(name).peak_flops.at(MathType::bf16) * 1e-12, peak, 0.5) << name;
  for (const char* name : {"p100", "v100"})
    EXPECT_FALSE(read_device(name).peak_flops.contains(MathType::bf16)) << name;
}

TEST(DevicePresets, capacity_and_residency_of_the_h100) {
  const DeviceSpec h100 = read_device("h100-sxm");
  EXPECT_EQ(h100.memory_bytes, 80LL << 30);
  EXPECT_EQ(h100.chip.n_sm * h100.chip.threads_per_sm, 270'336);
  EXPECT_EQ(h100.chip.n_sm * h100.chip.registers_per_sm * 4, 33LL << 20);
}

// 1,979 TFLOP/s of an H100 is sparse as bf16 and dense as fp8; doubling any tensor peak of any
// device makes it the sparse one.
TEST(DensePeaks, sparse_figures_are_refused_by_type) {
  EXPECT_THAT(
      device_error(replaced(preset_text("devices", "h100-sxm"), "\nbf16 = 989.4", "\nbf16 = 1979")),
      AllOf(HasSubstr(".toml:13: bf16 = 1979 TFLOP/s is the sparse figure"),
            HasSubstr("132 SMs x 4096 dense FLOP per SM and clock x 1830 MHz = 989.4")));
  EXPECT_EQ(
      device_error(replaced(preset_text("devices", "h100-sxm"), "\nfp8 = 1978.9", "\nfp8 = 1979")),
      "");
  for (const std::string& name : preset_names("devices"))
    for (const auto& [type, peak] : read_device(name).peak_flops) {
      DeviceSpec sparse = read_device(name);
      sparse.peak_flops[type] = 2 * peak;
      EXPECT_THAT(
          device_error(device_toml(sparse)),
          HasSubstr(fmt::format(
              "{} = {:.6g} TFLOP/s is the sparse figure", math_name(type), 2 * peak * 1e-12)));
    }
}

TEST(DensePeaks, types_that_a_chip_lacks_and_unknown_chips_are_refused) {
  const std::string v100 = preset_text("devices", "v100");
  EXPECT_THAT(device_error(replaced(v100, "\nf16 = 125", "\nbf16 = 125")),
              HasSubstr("sm_70 has no bf16"));
  EXPECT_THAT(device_error(replaced(v100, "sm_70", "sm_71")),
              HasSubstr("architecture \"sm_71\" is not one of sm_60, sm_70"));
  EXPECT_THAT(device_error(replaced(v100, "\nf16 = 125", "\nf16 = 62")),
              HasSubstr("f16 = 62 TFLOP/s is not the dense peak"));
}

TEST(DensePeaks, without_a_chip_by_the_ratios_of_tensor_types) {
  const auto device = [](const std::string& peaks) {
    return "name = \"x\"\ndescription = \"x\"\nmemory_gib = 1\nmemory_gb_s = 1\n[peak_tflops]\n" +
           peaks;
  };
  EXPECT_EQ(device_error(device("bf16 = 100\nfp8 = 200\ntf32 = 50\nint8 = 200\nfp4 = 400")), "");
  EXPECT_THAT(device_error(device("bf16 = 100\nfp8 = 400")),
              HasSubstr(":7: fp8 = 400 TFLOP/s is the sparse figure: dense, it is 2 x bf16 = 200"));
  EXPECT_THAT(device_error(device("bf16 = 100\ntf32 = 100")), HasSubstr("tf32 = 100 TFLOP/s is"));
  // A CPU as probed: no tensor cores, no ratio.
  EXPECT_EQ(device_error(device("f32 = 0.4\nbf16 = 0.1\nint8 = 0.9")), "");
}

// D25
TEST(DevicePresets, mistakes_name_file_and_line) {
  const std::string h100 = preset_text("devices", "h100-sxm");
  EXPECT_THAT(device_error(replaced(h100, "memory_gb_s", "memory_gbs")),
              AllOf(HasSubstr(".toml:5: unknown key \"memory_gbs\""),
                    HasSubstr("did you mean memory_gb_s?")));
  EXPECT_THAT(device_error(replaced(h100, "\nbf16 =", "\nbf61 =")),
              HasSubstr(".toml:13: unknown key"));
  EXPECT_THAT(device_error(replaced(h100, "memory_gib = 80", "")),
              HasSubstr("memory_gib is missing"));
  EXPECT_THAT(device_error(replaced(h100, "= 3350", "= -3350")),
              HasSubstr(".toml:5: memory_gb_s is"));
  EXPECT_THAT(device_error(replaced(h100, "= 3350", "= nan")),
              HasSubstr(".toml:5: memory_gb_s is nan"));
  EXPECT_THAT(device_error(replaced(h100, "= 3350", "= \"3350\"")),
              HasSubstr("memory_gb_s must be a number"));
  EXPECT_THAT(config_error([] { read_device("h100-smx"); }),
              AllOf(HasSubstr("no preset \"h100-smx\""), HasSubstr("h100-sxm")));
}

TEST(ClusterPresets, mistakes_name_file_and_line) {
  const std::string dgx = preset_text("clusters", "dgx-h100");
  EXPECT_THAT(cluster_error(replaced(dgx, "n_devices", "n_device")),
              AllOf(HasSubstr(".toml:7: unknown key"), HasSubstr("did you mean n_devices?")));
  EXPECT_THAT(cluster_error(replaced(dgx, "\"h100-sxm\"", "\"h100\"")),
              AllOf(HasSubstr(".toml:3: no preset \"h100\""), HasSubstr("a100-80")));
  EXPECT_THAT(cluster_error(replaced(dgx, "link = \"nvlink4\"", "")), HasSubstr("link is missing"));
  EXPECT_THAT(cluster_error(replaced(dgx, "\n[node]", "\nn_nodes = 2\n[node]")),
              HasSubstr(".toml:6: several nodes need a [fabric]"));
  EXPECT_THAT(cluster_error(replaced(dgx, "\"full\"", "\"ring\"")), HasSubstr("full, tree"));
  EXPECT_THAT(cluster_error(replaced(dgx, "\"full\"", "\"full\"\nsocket_gb_s = 1")),
              HasSubstr("socket_gb_s has no meaning in a full topology"));
  EXPECT_THAT(cluster_error(replaced(dgx, "\"full\"", "\"tree\"")),
              HasSubstr("no switch that reduces"));
  const std::string ndr = preset_text("clusters", "h100-ndr");
  EXPECT_THAT(cluster_error(replaced(ndr, "devices_per_nic = 1", "devices_per_nic = 3")),
              HasSubstr("not a multiple of devices_per_nic = 3"));
  const std::string pcie = preset_text("clusters", "h100-pcie-8");
  EXPECT_THAT(cluster_error(replaced(pcie, "devices_per_socket = 4", "devices_per_socket = 3")),
              HasSubstr("not a multiple of devices_per_socket = 3"));
}

}  // namespace
}  // namespace testbed
