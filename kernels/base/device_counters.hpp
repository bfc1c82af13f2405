// DeviceCounters: what a device's own counters say of a stretch of time. Plain, and of no
// particular device; what it does not tell is std::nullopt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace testbed {

struct DeviceCounters {
  double seconds = 0.0;  // how long the stretch was
  std::optional<double> joules;
  std::optional<int64_t> nvlink_tx_bytes;  // payload, sent and received
  std::optional<int64_t> nvlink_rx_bytes;
  std::optional<int64_t> pcie_tx_bytes;  // with PCIe's own headers, and all that used the link
  std::optional<int64_t> pcie_rx_bytes;
  std::optional<int64_t> ib_tx_bytes;  // all InfiniBand ports of its *host*, with packets' headers
  std::optional<int64_t> ib_rx_bytes;
  // What held its clocks down at the looks taken, idleness left out.
  std::optional<std::vector<std::string>> throttle_reasons;
  std::optional<double> power_throttled_s;    // clocks held down for power
  std::optional<double> thermal_throttled_s;  // for heat
  std::optional<std::vector<int64_t>> xids;   // faults that the driver reported
  std::optional<int64_t> ecc_corrected;
  std::optional<int64_t> ecc_uncorrected;
  std::optional<int64_t> sm_clock_mhz_min;  // over the looks taken
  std::optional<int64_t> sm_clock_mhz_max;
  std::optional<int64_t> temperature_c_max;
  std::optional<int64_t> dram_read_bytes;
  std::optional<int64_t> dram_write_bytes;
  std::optional<std::string> why_no_dram;  // where the two above are not there
};

}  // namespace testbed
