#include "runtime/measure/device_counters.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

template <typename T, typename Combine>
std::optional<T> both(const std::optional<T>& a, const std::optional<T>& b, Combine&& combine) {
  if (!a || !b) return std::nullopt;
  return combine(*a, *b);
}

template <typename T>
std::optional<T> sum(const std::optional<T>& a, const std::optional<T>& b) {
  return both(a, b, [](T x, T y) { return x + y; });
}
template <typename T>
std::optional<T> least(const std::optional<T>& a, const std::optional<T>& b) {
  return both(a, b, [](T x, T y) { return std::min(x, y); });
}
template <typename T>
std::optional<T> most(const std::optional<T>& a, const std::optional<T>& b) {
  return both(a, b, [](T x, T y) { return std::max(x, y); });
}

using Texts = std::vector<std::string>;

Texts united(Texts a, const Texts& b) {
  for (const std::string& text : b) {
    if (std::find(a.begin(), a.end(), text) == a.end()) a.push_back(text);
  }
  return a;
}

std::vector<int64_t> joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Every figure of plain type, in one order for both directions.
template <typename Counters, typename Visit>
void visit_numbers(Counters& c, Visit&& visit) {
  visit(c.seconds);
  visit(c.joules);
  visit(c.nvlink_tx_bytes);
  visit(c.nvlink_rx_bytes);
  visit(c.pcie_tx_bytes);
  visit(c.pcie_rx_bytes);
  visit(c.ib_tx_bytes);
  visit(c.ib_rx_bytes);
  visit(c.power_throttled_s);
  visit(c.thermal_throttled_s);
  visit(c.ecc_corrected);
  visit(c.ecc_uncorrected);
  visit(c.sm_clock_mhz_min);
  visit(c.sm_clock_mhz_max);
  visit(c.temperature_c_max);
  visit(c.dram_read_bytes);
  visit(c.dram_write_bytes);
}

template <typename T>
void put_optional(ByteWriter& out, const std::optional<T>& value) {
  out.put(static_cast<uint8_t>(value.has_value()));
  if (value) out.put(*value);
}
template <typename T>
void get_optional(ByteReader& in, std::optional<T>& value) {
  uint8_t is_there = 0;
  in.get(is_there);
  if (is_there != 0) in.get(value.emplace());
}

}  // namespace

DeviceCounters together(const DeviceCounters& a, const DeviceCounters& b) {
  return {.seconds = a.seconds + b.seconds,
          .joules = sum(a.joules, b.joules),
          .nvlink_tx_bytes = sum(a.nvlink_tx_bytes, b.nvlink_tx_bytes),
          .nvlink_rx_bytes = sum(a.nvlink_rx_bytes, b.nvlink_rx_bytes),
          .pcie_tx_bytes = sum(a.pcie_tx_bytes, b.pcie_tx_bytes),
          .pcie_rx_bytes = sum(a.pcie_rx_bytes, b.pcie_rx_bytes),
          .ib_tx_bytes = sum(a.ib_tx_bytes, b.ib_tx_bytes),
          .ib_rx_bytes = sum(a.ib_rx_bytes, b.ib_rx_bytes),
          .throttle_reasons = both(a.throttle_reasons, b.throttle_reasons, united),
          .power_throttled_s = sum(a.power_throttled_s, b.power_throttled_s),
          .thermal_throttled_s = sum(a.thermal_throttled_s, b.thermal_throttled_s),
          .xids = both(a.xids, b.xids, joined),
          .ecc_corrected = sum(a.ecc_corrected, b.ecc_corrected),
          .ecc_uncorrected = sum(a.ecc_uncorrected, b.ecc_uncorrected),
          .sm_clock_mhz_min = least(a.sm_clock_mhz_min, b.sm_clock_mhz_min),
          .sm_clock_mhz_max = most(a.sm_clock_mhz_max, b.sm_clock_mhz_max),
          .temperature_c_max = most(a.temperature_c_max, b.temperature_c_max),
          .dram_read_bytes = sum(a.dram_read_bytes, b.dram_read_bytes),
          .dram_write_bytes = sum(a.dram_write_bytes, b.dram_write_bytes),
          .why_no_dram = a.why_no_dram ? a.why_no_dram : b.why_no_dram};
}

void put(ByteWriter& out, const DeviceCounters& counters) {
  visit_numbers(counters, [&](const auto& value) { out.put(value); });
  out.put(static_cast<uint8_t>(counters.throttle_reasons.has_value()));
  if (counters.throttle_reasons) {
    out.put(static_cast<uint64_t>(counters.throttle_reasons->size()));
    for (const std::string& reason : *counters.throttle_reasons) out.put(reason);
  }
  put_optional(out, counters.xids);
  put_optional(out, counters.why_no_dram);
}

DeviceCounters get_device_counters(ByteReader& in) {
  DeviceCounters counters;
  visit_numbers(counters, [&](auto& value) { in.get(value); });
  uint8_t has_reasons = 0;
  in.get(has_reasons);
  if (has_reasons != 0) {
    uint64_t n = 0;
    in.get(n);
    Texts& reasons = counters.throttle_reasons.emplace();
    for (uint64_t i = 0; i < n; ++i) in.get(reasons.emplace_back());
  }
  get_optional(in, counters.xids);
  get_optional(in, counters.why_no_dram);
  return counters;
}

CounterWindows::CounterWindows(std::function<void()> begin, std::function<DeviceCounters()> end)
    : begin_(std::move(begin)), end_(std::move(end)) {
  CHECK(static_cast<bool>(begin_) == static_cast<bool>(end_));
}

void CounterWindows::begin() {
  if (begin_) begin_();
}

void CounterWindows::end() {
  if (!end_) return;
  const DeviceCounters window = end_();
  total_ = total_ ? together(*total_, window) : window;
}

}  // namespace testbed
