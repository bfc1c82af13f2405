#include "kernels/cuda/nvml.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "kernels/base/pci_bus_id.hpp"
#include "kernels/cuda/nvml_library.hpp"

namespace testbed {
namespace {

using nvml_abi::Functions;

template <typename T>
std::optional<int64_t> as_int(const std::optional<T>& value) {
  if (!value) return std::nullopt;
  return static_cast<int64_t>(*value);
}

// A function that tells what is now and what will be.
template <typename Mode, typename Function>
std::optional<bool> current_mode(Function function, nvml_abi::Device device) {
  Mode now{};
  Mode next{};
  if (function == nullptr || function(device, &now, &next) != nvml_abi::success) {
    return std::nullopt;
  }
  return now != Mode{};
}

NvLink::End end_of(const std::optional<int>& type) {
  if (!type) return NvLink::End::unknown;
  if (*type == nvml_abi::remote_gpu) return NvLink::End::gpu;
  if (*type == nvml_abi::remote_switch) return NvLink::End::nvswitch;
  return NvLink::End::other;
}

std::string shown(const std::optional<std::string>& text) { return text.value_or("not available"); }
std::string shown(const std::optional<bool>& mode) {
  return mode ? (*mode ? "on" : "off") : "not available";
}
std::string shown(const std::optional<int64_t>& number, std::string_view unit) {
  return number ? fmt::format("{}{}", *number, unit) : "not available";
}

// "18 links, version 4, to 18 switches"
std::string shown(const std::optional<std::vector<NvLink>>& links) {
  if (!links) return "not available";
  if (links->empty()) return "none";
  int n_switch = 0;
  int n_gpu = 0;
  for (const NvLink& link : *links) {
    n_switch += link.end == NvLink::End::nvswitch ? 1 : 0;
    n_gpu += link.end == NvLink::End::gpu ? 1 : 0;
  }
  const auto& version = links->front().version;
  return fmt::format("{} links, version {}, {} to switches, {} to GPUs",
                     links->size(),
                     version ? std::to_string(*version) : "not available",
                     n_switch,
                     n_gpu);
}

}  // namespace

std::vector<std::string> throttle_reason_names(uint64_t reasons) {
  // nvmlClocksEventReason*, by bit.
  constexpr std::array<std::string_view, 9> names{"gpu_idle",
                                                  "applications_clocks_setting",
                                                  "sw_power_cap",
                                                  "hw_slowdown",
                                                  "sync_boost",
                                                  "sw_thermal_slowdown",
                                                  "hw_thermal_slowdown",
                                                  "hw_power_brake_slowdown",
                                                  "display_clock_setting"};
  std::vector<std::string> list;
  list.reserve(names.size());
  for (size_t bit = 0; bit < 64; ++bit) {
    const uint64_t mask = uint64_t{1} << bit;
    if ((reasons & mask) == 0) continue;
    list.push_back(bit < names.size() ? std::string(names[bit]) : fmt::format("bit {:#x}", mask));
  }
  return list;
}

std::optional<std::vector<NvLink>> NvmlDevice::links() const {
  const Functions& f = library_->functions();
  if (f.nvlink_state == nullptr) return std::nullopt;
  std::vector<NvLink> links;
  links.reserve(nvml_abi::nvlink_max_links);
  for (unsigned i = 0; i < nvml_abi::nvlink_max_links; ++i) {
    const auto is_active = NvmlLibrary::get<int>(f.nvlink_state, device_, i);
    if (is_active.value_or(0) != 1) continue;  // a device without NVLink has no state
    NvLink link{.index = static_cast<int>(i),
                .end = end_of(NvmlLibrary::get<int>(f.nvlink_remote_type, device_, i))};
    if (const auto pci = NvmlLibrary::get<nvml_abi::PciInfo>(f.nvlink_remote, device_, i)) {
      link.remote_pci_bus_id = canonical_pci_bus_id(pci->bus_id);
    }
    if (const auto version = NvmlLibrary::get<unsigned>(f.nvlink_version, device_, i)) {
      link.version = static_cast<int>(*version);
    }
    links.push_back(std::move(link));
  }
  return links;
}

NvmlDescription NvmlDevice::describe() const {
  const Functions& f = library_->functions();
  const auto number = [&](auto function, auto... args) {
    return as_int(NvmlLibrary::get<unsigned>(function, device_, args...));
  };
  return {.name = NvmlLibrary::get_text(f.name, device_),
          .uuid = NvmlLibrary::get_text(f.uuid, device_),
          .serial = NvmlLibrary::get_text(f.serial, device_),
          .max_sm_clock_mhz = number(f.max_clock, nvml_abi::clock_sm),
          .max_memory_clock_mhz = number(f.max_clock, nvml_abi::clock_memory),
          .power_limit_mw = number(f.power_limit),
          .ecc = current_mode<int>(f.ecc_mode, device_),
          .mig = current_mode<unsigned>(f.mig_mode, device_),
          .max_pcie_generation = number(f.max_pcie_generation),
          .max_pcie_width = number(f.max_pcie_width),
          .links = links()};
}

std::optional<NvmlCounter> NvmlDevice::field(unsigned id, unsigned scope) const {
  const Functions& f = library_->functions();
  nvml_abi::FieldValue value{};
  value.field_id = id;
  value.scope_id = scope;
  if (f.field_values == nullptr || f.field_values(device_, 1, &value) != nvml_abi::success ||
      value.status != nvml_abi::success) {
    return std::nullopt;
  }
  switch (value.value_type) {
    case nvml_abi::value_unsigned_int:
      return NvmlCounter{.value = value.value.ui, .is_32_bit = true};
    case nvml_abi::value_unsigned_long:
      return NvmlCounter{.value = value.value.ul};
    case nvml_abi::value_unsigned_long_long:
      return NvmlCounter{.value = value.value.ull};
    case nvml_abi::value_signed_long_long:
      return NvmlCounter{.value = static_cast<uint64_t>(value.value.sll)};
    default:
      return std::nullopt;  // no counter
  }
}

std::optional<int64_t> NvmlDevice::nvlink_bytes(unsigned kib_field, unsigned bytes_field) const {
  constexpr int64_t kib = 1024;
  if (const auto counter = field(kib_field, nvml_abi::all_links)) {
    return static_cast<int64_t>(counter->value) * kib;
  }
  const auto counter = field(bytes_field, nvml_abi::all_links);
  return counter ? std::optional(static_cast<int64_t>(counter->value)) : std::nullopt;
}

NvmlSample NvmlDevice::sample() const {
  using Wide = unsigned long long;
  const Functions& f = library_->functions();
  const auto number = [&](auto function, auto... args) {
    return as_int(NvmlLibrary::get<unsigned>(function, device_, args...));
  };
  const auto wide = [&](auto function, auto... args) {
    return as_int(NvmlLibrary::get<Wide>(function, device_, args...));
  };
  const auto held_down_ns = [&](nvml_abi::PerfPolicy policy) -> std::optional<int64_t> {
    const auto time = NvmlLibrary::get<nvml_abi::ViolationTime>(f.violation, device_, policy);
    return time ? std::optional(static_cast<int64_t>(time->violation_ns)) : std::nullopt;
  };
  return {.sm_clock_mhz = number(f.clock, nvml_abi::clock_sm),
          .memory_clock_mhz = number(f.clock, nvml_abi::clock_memory),
          .temperature_c = number(f.temperature, nvml_abi::temperature_gpu),
          .power_mw = number(f.power),
          .throttle_reasons = NvmlLibrary::get<Wide>(f.throttle_reasons, device_),
          .power_throttled_ns = held_down_ns(nvml_abi::policy_power),
          .thermal_throttled_ns = held_down_ns(nvml_abi::policy_thermal),
          .energy_mj = wide(f.energy),
          .ecc_corrected = wide(f.ecc_errors, nvml_abi::ecc_corrected, nvml_abi::ecc_volatile),
          .ecc_uncorrected = wide(f.ecc_errors, nvml_abi::ecc_uncorrected, nvml_abi::ecc_volatile),
          .pcie_generation = number(f.pcie_generation),
          .pcie_width = number(f.pcie_width),
          .pcie_tx_bytes = field(nvml_abi::field_pcie_tx_bytes, 0),
          .pcie_rx_bytes = field(nvml_abi::field_pcie_rx_bytes, 0),
          .nvlink_tx_bytes =
              nvlink_bytes(nvml_abi::field_nvlink_data_tx_kib, nvml_abi::field_nvlink5_tx_bytes),
          .nvlink_rx_bytes =
              nvlink_bytes(nvml_abi::field_nvlink_data_rx_kib, nvml_abi::field_nvlink5_rx_bytes)};
}

Nvml::Nvml(const std::string& library) {
  std::string why_not;
  library_ = NvmlLibrary::open(library, why_not);
  if (library_ == nullptr) why_not_ = why_not;
}

std::optional<std::string> Nvml::driver_version() const {
  if (library_ == nullptr) return std::nullopt;
  return NvmlLibrary::get_text(library_->functions().driver_version);
}

std::optional<NvmlDevice> Nvml::device(const std::string& pci_bus_id) const {
  if (library_ == nullptr) return std::nullopt;
  const auto handle = NvmlLibrary::get<nvml_abi::Device>(library_->functions().by_pci_bus_id,
                                                         canonical_pci_bus_id(pci_bus_id).c_str());
  if (!handle) return std::nullopt;
  return NvmlDevice(library_, *handle);
}

std::map<std::string, std::string> nvml_fingerprint(const Nvml& nvml,
                                                    const std::string& pci_bus_id) {
  if (const auto& reason = nvml.why_not_available()) return {{"nvml", "not available: " + *reason}};
  const auto device = nvml.device(pci_bus_id);
  if (!device) return {{"nvml", "not available: it does not know GPU " + pci_bus_id}};
  const NvmlDescription d = device->describe();
  const NvmlSample s = device->sample();
  return {{"driver", shown(nvml.driver_version())},
          {"name", shown(d.name)},
          {"pci_bus_id", canonical_pci_bus_id(pci_bus_id)},
          {"uuid", shown(d.uuid)},
          {"serial", shown(d.serial)},
          {"max_sm_clock", shown(d.max_sm_clock_mhz, " MHz")},
          {"max_memory_clock", shown(d.max_memory_clock_mhz, " MHz")},
          {"power_limit", shown(d.power_limit_mw, " mW")},
          {"ecc", shown(d.ecc)},
          {"ecc_corrected", shown(s.ecc_corrected, "")},
          {"ecc_uncorrected", shown(s.ecc_uncorrected, "")},
          {"mig", shown(d.mig)},
          {"max_pcie_generation", shown(d.max_pcie_generation, "")},
          {"max_pcie_width", shown(d.max_pcie_width, " lanes")},
          {"nvlink", shown(d.links)}};
}

NvmlXidWatch::NvmlXidWatch(const NvmlDevice& device) : library_(device.library()) {
  const Functions& f = library_->functions();
  if (f.create_events == nullptr || f.register_events == nullptr || f.free_events == nullptr ||
      f.wait_event == nullptr || f.create_events(&events_) != nvml_abi::success) {
    events_ = nullptr;
    return;
  }
  if (f.register_events(device.handle(), nvml_abi::event_xid, events_) != nvml_abi::success) {
    f.free_events(events_);
    events_ = nullptr;
  }
}

NvmlXidWatch::~NvmlXidWatch() {
  if (events_ != nullptr) library_->functions().free_events(events_);
}

std::optional<std::vector<int64_t>> NvmlXidWatch::poll() {
  if (events_ == nullptr) return std::nullopt;
  constexpr int most = 64;  // a broken device may have no end of them
  std::vector<int64_t> xids;
  xids.reserve(most);
  for (int i = 0; i < most; ++i) {
    nvml_abi::EventData event{};
    if (library_->functions().wait_event(events_, &event, 0) != nvml_abi::success) break;
    if ((event.event_type & nvml_abi::event_xid) != 0) {
      xids.push_back(static_cast<int64_t>(event.event_data));
    }
  }
  return xids;
}

}  // namespace testbed
