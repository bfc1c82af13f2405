#include "kernels/cuda/nvml_window.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace testbed {
namespace {

// Energy counters move about ten times a second: a window of one second is off by a fifth at most.
constexpr double shortest_energy_window_s = 1.0;
constexpr double joules_per_mj = 1e-3;
constexpr double s_per_ns = 1e-9;
constexpr uint64_t reason_idle = 1;  // nvmlClocksEventReasonGpuIdle

using Number = std::optional<int64_t>;

Number difference(Number first, Number last) {
  if (!first || !last || *last < *first) return std::nullopt;  // smaller: the driver was reloaded
  return *last - *first;
}

std::optional<double> scaled(Number number, double unit) {
  if (!number) return std::nullopt;
  return static_cast<double>(*number) * unit;
}

// Of a PCIe link, one direction. A lane of generation 1 carries 2.5 GT/s by 8b/10b, 2 twice that; 3
// to 5 8, 16 and 32 GT/s by 128b/130b; 6 64 GT/s in flits of 242 bytes out of 256.
std::optional<double> link_bytes_per_s(Number generation, Number n_lanes) {
  constexpr std::array lanes{0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  if (!generation || !n_lanes || *generation < 1 ||
      *generation > static_cast<int64_t>(lanes.size())) {
    return std::nullopt;
  }
  return lanes[static_cast<size_t>(*generation - 1)] * static_cast<double>(*n_lanes);
}

// Of a counter that wraps: only if it cannot have done so twice.
Number pcie_bytes(const std::optional<NvmlCounter>& first,
                  const std::optional<NvmlCounter>& last,
                  std::optional<double> most_bytes) {
  constexpr double range = 4294967296.0;  // 2^32
  if (!first || !last) return std::nullopt;
  if (!first->is_32_bit) {
    return difference(static_cast<int64_t>(first->value), static_cast<int64_t>(last->value));
  }
  if (!most_bytes || *most_bytes >= range) return std::nullopt;
  return static_cast<uint32_t>(last->value) - static_cast<uint32_t>(first->value);
}

Number extreme(Number a, Number b, bool largest) {
  if (!a || !b) return a ? a : b;
  return largest ? std::max(*a, *b) : std::min(*a, *b);
}

}  // namespace

NvmlWindow::NvmlWindow(NvmlDevice device) : device_(std::move(device)), xids_(device_) {
  const NvmlDescription description = device_.describe();
  pcie_bytes_per_s_ = link_bytes_per_s(description.max_pcie_generation, description.max_pcie_width);
}

void NvmlWindow::note(const NvmlSample& sample) {
  seen_.sm_clock_mhz_min = extreme(seen_.sm_clock_mhz_min, sample.sm_clock_mhz, false);
  seen_.sm_clock_mhz_max = extreme(seen_.sm_clock_mhz_max, sample.sm_clock_mhz, true);
  seen_.temperature_c_max = extreme(seen_.temperature_c_max, sample.temperature_c, true);
  if (sample.throttle_reasons) reasons_ = reasons_.value_or(0) | *sample.throttle_reasons;
}

void NvmlWindow::begin(Time now) {
  seen_ = {};
  reasons_.reset();
  xids_.poll();  // those from before are not this window's
  first_ = device_.sample();
  note(first_);
  begin_ = now;
}

void NvmlWindow::look() { note(device_.sample()); }

DeviceCounters NvmlWindow::end(Time now) {
  const NvmlSample last = device_.sample();
  note(last);
  DeviceCounters record = seen_;
  record.seconds = std::chrono::duration<double>(now - begin_).count();
  if (record.seconds >= shortest_energy_window_s) {
    record.joules = scaled(difference(first_.energy_mj, last.energy_mj), joules_per_mj);
  }
  record.nvlink_tx_bytes = difference(first_.nvlink_tx_bytes, last.nvlink_tx_bytes);
  record.nvlink_rx_bytes = difference(first_.nvlink_rx_bytes, last.nvlink_rx_bytes);
  std::optional<double> most_bytes;
  if (pcie_bytes_per_s_) most_bytes = *pcie_bytes_per_s_ * record.seconds;
  record.pcie_tx_bytes = pcie_bytes(first_.pcie_tx_bytes, last.pcie_tx_bytes, most_bytes);
  record.pcie_rx_bytes = pcie_bytes(first_.pcie_rx_bytes, last.pcie_rx_bytes, most_bytes);
  record.power_throttled_s =
      scaled(difference(first_.power_throttled_ns, last.power_throttled_ns), s_per_ns);
  record.thermal_throttled_s =
      scaled(difference(first_.thermal_throttled_ns, last.thermal_throttled_ns), s_per_ns);
  if (reasons_) record.throttle_reasons = throttle_reason_names(*reasons_ & ~reason_idle);
  record.xids = xids_.poll();
  record.ecc_corrected = difference(first_.ecc_corrected, last.ecc_corrected);
  record.ecc_uncorrected = difference(first_.ecc_uncorrected, last.ecc_uncorrected);
  record.why_no_dram = "CUPTI is not asked (--dram-counters)";
  return record;
}

}  // namespace testbed
