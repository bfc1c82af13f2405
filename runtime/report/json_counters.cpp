// The devices' counters in the record.
#include "runtime/report/json_parts.hpp"
#include "runtime/report/json_phase.hpp"

namespace testbed::report_json {

Json device_counters_json(const DeviceCountersRecord& r) {
  const DeviceCounters& c = r.counters;
  const auto& link_bytes = r.predicted_link_bytes;
  return {{"rank", r.rank},
          {"device", r.device},
          {"seconds", json_number(c.seconds)},
          {"joules", json_number(c.joules)},
          {"nvlink_tx_bytes", or_null(c.nvlink_tx_bytes)},
          {"nvlink_rx_bytes", or_null(c.nvlink_rx_bytes)},
          {"predicted_wire_bytes", r.predicted_wire_bytes},
          {"predicted_link_bytes_min", link_bytes ? Json(link_bytes->min) : Json()},
          {"predicted_link_bytes_max", link_bytes ? Json(link_bytes->max) : Json()},
          {"why_no_link_bytes", or_null(r.why_no_link_bytes)},
          {"transport", r.transport},
          {"pcie_tx_bytes", or_null(c.pcie_tx_bytes)},
          {"pcie_rx_bytes", or_null(c.pcie_rx_bytes)},
          {"ib_tx_bytes", or_null(c.ib_tx_bytes)},
          {"ib_rx_bytes", or_null(c.ib_rx_bytes)},
          {"throttle_reasons", or_null(c.throttle_reasons)},
          {"power_throttled_s", json_number(c.power_throttled_s)},
          {"thermal_throttled_s", json_number(c.thermal_throttled_s)},
          {"xids", or_null(c.xids)},
          {"ecc_corrected", or_null(c.ecc_corrected)},
          {"ecc_uncorrected", or_null(c.ecc_uncorrected)},
          {"sm_clock_mhz_min", or_null(c.sm_clock_mhz_min)},
          {"sm_clock_mhz_max", or_null(c.sm_clock_mhz_max)},
          {"temperature_c_max", or_null(c.temperature_c_max)},
          {"dram_read_bytes", or_null(c.dram_read_bytes)},
          {"dram_write_bytes", or_null(c.dram_write_bytes)},
          {"why_no_dram", or_null(c.why_no_dram)}};
}

Json energy_json(const std::optional<EnergyRecord>& energy) {
  if (!energy) return nullptr;
  return {{"joules", json_number(energy->joules)},
          {"joules_per_token", json_number(energy->joules_per_token)}};
}

}  // namespace testbed::report_json
