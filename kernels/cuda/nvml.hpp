// NVML, the driver's management library, opened at run time: what a GPU is, and counters of what
// happened on it. What this library, driver or device does not have is std::nullopt, never an
// error. Needs no CUDA header.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/nvml_abi.hpp"

namespace testbed {

// An NVLink that is active.
struct NvLink {
  enum class End : uint8_t { gpu, nvswitch, other, unknown };
  int index = 0;
  End end = End::unknown;
  std::optional<std::string> remote_pci_bus_id;  // canonical (kernels/base/pci_bus_id.hpp)
  std::optional<int> version;
};

// What stays the same during a run.
struct NvmlDescription {
  std::optional<std::string> name;
  std::optional<std::string> uuid;
  std::optional<std::string> serial;
  std::optional<int64_t> max_sm_clock_mhz;
  std::optional<int64_t> max_memory_clock_mhz;
  std::optional<int64_t> power_limit_mw;
  std::optional<bool> ecc;
  std::optional<bool> mig;
  std::optional<int64_t> max_pcie_generation;
  std::optional<int64_t> max_pcie_width;  // lanes
  std::optional<std::vector<NvLink>> links;
};

// A counter that grows and may wrap.
struct NvmlCounter {
  uint64_t value = 0;
  bool is_32_bit = false;
};

// What changes. Counters are since the driver was loaded.
struct NvmlSample {
  std::optional<int64_t> sm_clock_mhz;
  std::optional<int64_t> memory_clock_mhz;
  std::optional<int64_t> temperature_c;
  std::optional<int64_t> power_mw;
  std::optional<uint64_t> throttle_reasons;     // bits; throttle_reason_names
  std::optional<int64_t> power_throttled_ns;    // clocks held down for power
  std::optional<int64_t> thermal_throttled_ns;  // for heat
  std::optional<int64_t> energy_mj;
  std::optional<int64_t> ecc_corrected;
  std::optional<int64_t> ecc_uncorrected;
  std::optional<int64_t> pcie_generation;
  std::optional<int64_t> pcie_width;  // lanes
  std::optional<NvmlCounter> pcie_tx_bytes;
  std::optional<NvmlCounter> pcie_rx_bytes;
  std::optional<int64_t> nvlink_tx_bytes;  // payload, all links; in steps of 1 KiB up to NVLink 4
  std::optional<int64_t> nvlink_rx_bytes;
};

// "sw_power_cap", "hw_thermal_slowdown", ...; "bit 0x..." for one that is not known.
std::vector<std::string> throttle_reason_names(uint64_t reasons);

class NvmlLibrary;

class NvmlDevice {
 public:
  NvmlDevice(std::shared_ptr<const NvmlLibrary> library, nvml_abi::Device device)
      : library_(std::move(library)), device_(device) {}
  NvmlDescription describe() const;
  NvmlSample sample() const;
  const std::shared_ptr<const NvmlLibrary>& library() const { return library_; }
  nvml_abi::Device handle() const { return device_; }

 private:
  std::optional<std::vector<NvLink>> links() const;
  std::optional<NvmlCounter> field(unsigned id, unsigned scope) const;
  std::optional<int64_t> nvlink_bytes(unsigned kib_field, unsigned bytes_field) const;

  std::shared_ptr<const NvmlLibrary> library_;
  nvml_abi::Device device_;
};

class Nvml {
 public:
  static constexpr const char* usual_library = "libnvidia-ml.so.1";
  explicit Nvml(const std::string& library = usual_library);

  // Why there is none: "libnvidia-ml.so.1: cannot open ..."; nullopt: there is.
  const std::optional<std::string>& why_not_available() const { return why_not_; }
  std::optional<std::string> driver_version() const;
  std::optional<NvmlDevice> device(const std::string& pci_bus_id) const;

 private:
  std::shared_ptr<const NvmlLibrary> library_;  // nullptr: not available
  std::optional<std::string> why_not_;
};

// For the record: what the device is, "not available" where that is not known.
std::map<std::string, std::string> nvml_fingerprint(const Nvml& nvml,
                                                    const std::string& pci_bus_id);

// Xid errors (the driver's reports of faults) of a device from when this was made.
class NvmlXidWatch {
 public:
  explicit NvmlXidWatch(const NvmlDevice& device);
  ~NvmlXidWatch();
  NvmlXidWatch(const NvmlXidWatch&) = delete;
  NvmlXidWatch& operator=(const NvmlXidWatch&) = delete;
  // Those that came since the last call; does not block. nullopt: they cannot be watched.
  std::optional<std::vector<int64_t>> poll();

 private:
  std::shared_ptr<const NvmlLibrary> library_;
  nvml_abi::EventSet events_ = nullptr;
};

}  // namespace testbed
