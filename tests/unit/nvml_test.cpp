// NVML by way of a stand-in library (nvml_stand_in.cpp) with known counters.
#include "kernels/cuda/nvml.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/pci_bus_id.hpp"
#include "kernels/cuda/nvml_window.hpp"
#include "launch/gpu_placement.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr const char* gpu = "0000:1b:00.0";
constexpr auto begin_at = NvmlWindow::Time(std::chrono::seconds(100));

// The stand-in's own functions; loading it once more keeps its counters over the test.
class StandIn {
 public:
  StandIn() : handle_(dlopen(TESTBED_NVML_STAND_IN, RTLD_NOW)) {}
  ~StandIn() { dlclose(handle_); }
  int inits() const { return function<int()>("stand_in_inits")(); }
  int event_sets() const { return function<int()>("stand_in_event_sets")(); }
  void raise_xids(int n) const { function<void(int)>("stand_in_raise_xids")(n); }

 private:
  template <typename Signature>
  Signature* function(const char* name) const {
    return reinterpret_cast<Signature*>(dlsym(handle_, name));
  }
  void* handle_;
};

TEST(PciBusId, is_spelt_as_sysfs_does) {
  EXPECT_EQ(canonical_pci_bus_id("00000000:1B:00.0"), gpu);
  EXPECT_EQ(canonical_pci_bus_id("0000:1b:00.0"), gpu);
  EXPECT_EQ(canonical_pci_bus_id("1B:00.0"), gpu);
  EXPECT_EQ(canonical_pci_bus_id("00010000:1B:00.0"), "10000:1b:00.0");
  EXPECT_EQ(canonical_pci_bus_id("0:1b:00.0"), gpu);
  EXPECT_EQ(canonical_pci_bus_id(""), "");
  EXPECT_EQ(canonical_pci_bus_id("none"), "none");
}

TEST(Nvml, describes_a_device) {
  const Nvml nvml(TESTBED_NVML_STAND_IN);
  EXPECT_EQ(nvml.why_not_available(), std::nullopt);
  EXPECT_EQ(nvml.driver_version(), "580.65.06");
  EXPECT_FALSE(nvml.device("0000:ff:00.0"));
  const NvmlDescription d = nvml.device(gpu).value().describe();
  EXPECT_EQ(d.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(d.uuid, "GPU-1234");
  EXPECT_EQ(d.serial, "165");
  EXPECT_EQ(d.max_sm_clock_mhz, 1980);
  EXPECT_EQ(d.max_memory_clock_mhz, 2619);
  EXPECT_EQ(d.power_limit_mw, 700000);
  EXPECT_EQ(d.ecc, true);
  EXPECT_EQ(d.mig, false);
  EXPECT_EQ(d.max_pcie_generation, 5);
  EXPECT_EQ(d.max_pcie_width, 16);
  ASSERT_EQ(d.links.value().size(), 3U);
  EXPECT_EQ(d.links->at(0).end, NvLink::End::nvswitch);
  EXPECT_EQ(d.links->at(2).end, NvLink::End::gpu);
  EXPECT_EQ(d.links->at(2).remote_pci_bus_id, "0000:43:00.0");
  EXPECT_EQ(d.links->at(2).version, 4);
}

TEST(Nvml, tells_what_links_end_in) {
  const Nvml nvml(TESTBED_NVML_STAND_IN);
  const DeviceLinks links = device_links(nvml, "00000000:1B:00.0").value();
  EXPECT_EQ(links.pci_bus_id, gpu);
  EXPECT_EQ(links.n_switch_links, 2);
  EXPECT_THAT(links.peers, ElementsAre("0000:43:00.0"));
  EXPECT_FALSE(device_links(nvml, "0000:ff:00.0"));
}

TEST(Nvml, is_shut_down_with_its_last_user) {
  const StandIn stand_in;
  {
    std::optional<NvmlDevice> device = Nvml(TESTBED_NVML_STAND_IN).device(gpu);
    EXPECT_EQ(stand_in.inits(), 1);
    const NvmlXidWatch watch(*device);
    EXPECT_EQ(stand_in.event_sets(), 1);
    device.reset();
    EXPECT_EQ(stand_in.inits(), 1);
  }
  EXPECT_EQ(stand_in.inits(), 0);
  EXPECT_EQ(stand_in.event_sets(), 0);
}

TEST(Nvml, says_why_it_is_not_there) {
  const Nvml missing("libno-such-nvml.so.1");
  EXPECT_THAT(missing.why_not_available().value(), HasSubstr("libno-such-nvml.so.1"));
  EXPECT_EQ(missing.driver_version(), std::nullopt);
  EXPECT_FALSE(missing.device(gpu));
  EXPECT_THAT(nvml_fingerprint(missing, gpu),
              ElementsAre(Pair("nvml", HasSubstr("not available: libno-such-nvml.so.1"))));
  const Nvml broken(TESTBED_NVML_BROKEN_STAND_IN);
  EXPECT_THAT(broken.why_not_available().value(),
              HasSubstr("nvmlInit_v2: Driver Not Loaded (code 9)"));
}

TEST(Nvml, does_without_functions) {
  const Nvml old(TESTBED_NVML_OLD_STAND_IN);
  const NvmlDevice device = old.device(gpu).value();
  const NvmlDescription d = device.describe();
  EXPECT_EQ(d.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(d.serial, std::nullopt);
  EXPECT_EQ(d.ecc, std::nullopt);
  EXPECT_EQ(d.links, std::nullopt);
  EXPECT_EQ(NvmlXidWatch(device).poll(), std::nullopt);
  NvmlWindow window(device);
  window.begin(begin_at);
  const DeviceCounters r = window.end(begin_at + std::chrono::seconds(2));
  EXPECT_EQ(r.seconds, 2.0);
  EXPECT_EQ(r.joules, std::nullopt);
  EXPECT_EQ(r.nvlink_tx_bytes, std::nullopt);
  EXPECT_EQ(r.pcie_rx_bytes, std::nullopt);
  EXPECT_EQ(r.throttle_reasons, std::nullopt);
  EXPECT_EQ(r.xids, std::nullopt);
  EXPECT_EQ(r.dram_read_bytes, std::nullopt);
  EXPECT_TRUE(r.why_no_dram);
  const auto fingerprint = nvml_fingerprint(old, gpu);
  EXPECT_EQ(fingerprint.at("name"), "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(fingerprint.at("ecc"), "not available");
  EXPECT_EQ(fingerprint.at("nvlink"), "not available");
}

TEST(Nvml, goes_into_the_fingerprint) {
  const auto fingerprint = nvml_fingerprint(Nvml(TESTBED_NVML_STAND_IN), "0000:1b:00.0");
  EXPECT_EQ(fingerprint.at("driver"), "580.65.06");
  EXPECT_EQ(fingerprint.at("pci_bus_id"), gpu);
  EXPECT_EQ(fingerprint.at("power_limit"), "700000 mW");
  EXPECT_EQ(fingerprint.at("ecc"), "on");
  EXPECT_EQ(fingerprint.at("ecc_corrected"), "7");
  EXPECT_EQ(fingerprint.at("mig"), "off");
  EXPECT_EQ(fingerprint.at("nvlink"), "3 links, version 4, 2 to switches, 1 to GPUs");
}

TEST(Nvml, names_throttle_reasons) {
  EXPECT_THAT(throttle_reason_names(0), IsEmpty());
  EXPECT_THAT(throttle_reason_names(0x1 | 0x40 | 0x4 | 0x1000),
              ElementsAre("gpu_idle", "sw_power_cap", "hw_thermal_slowdown", "bit 0x1000"));
}

// Each sample of the stand-in is one step of its counters.
TEST(NvmlWindow, takes_differences) {
  const StandIn stand_in;
  NvmlWindow window(Nvml(TESTBED_NVML_STAND_IN).device(gpu).value());
  stand_in.raise_xids(2);  // before: not this window's
  window.begin(begin_at);
  stand_in.raise_xids(1);
  // 64 GB/s would move 64e9 bytes in a second, and the counter of 32 bits wrap more than once.
  const DeviceCounters r = window.end(begin_at + std::chrono::seconds(2));
  EXPECT_DOUBLE_EQ(r.joules.value(), 824.5);
  EXPECT_EQ(r.nvlink_tx_bytes, 100 * 1024);
  EXPECT_EQ(r.nvlink_rx_bytes, 200 * 1024);
  EXPECT_EQ(r.pcie_tx_bytes, std::nullopt);
  EXPECT_DOUBLE_EQ(r.power_throttled_s.value(), 0.25);
  EXPECT_DOUBLE_EQ(r.thermal_throttled_s.value(), 0.0);
  EXPECT_THAT(r.throttle_reasons.value(), ElementsAre("sw_power_cap"));
  EXPECT_THAT(r.xids.value(), ElementsAre(79));
  EXPECT_EQ(r.ecc_corrected, 0);
  EXPECT_EQ(r.ecc_uncorrected, 0);
  EXPECT_EQ(r.sm_clock_mhz_max.value() - r.sm_clock_mhz_min.value(), 15);
  EXPECT_EQ(r.temperature_c_max, 61);
}

TEST(NvmlWindow, tells_only_what_a_short_window_resolves) {
  NvmlWindow window(Nvml(TESTBED_NVML_STAND_IN).device(gpu).value());
  window.begin(begin_at);
  window.look();
  const DeviceCounters r = window.end(begin_at + std::chrono::milliseconds(50));
  EXPECT_EQ(r.joules, std::nullopt);  // its counter moves ten times a second
  // Two steps of 1000 bytes in 50 ms, in which the link moves 3.2 GB at most; over the wrap.
  EXPECT_EQ(r.pcie_tx_bytes, 2000);
  EXPECT_EQ(r.pcie_rx_bytes, 2000);
  EXPECT_EQ(r.sm_clock_mhz_max.value() - r.sm_clock_mhz_min.value(), 30);
  EXPECT_THAT(r.xids.value(), IsEmpty());
}

}  // namespace
}  // namespace testbed
