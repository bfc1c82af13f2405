// The devices' counters in one line of the table.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/report/table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed::table {
namespace {

using Records = std::vector<DeviceCountersRecord>;

// Of all devices: each reason once.
std::string held_down(const Records& records) {
  std::vector<std::string> reasons;
  bool is_known = false;
  for (const DeviceCountersRecord& record : records) {
    const auto of_rank = what_held_clocks_down(record.counters);
    is_known = is_known || of_rank.has_value();
    if (of_rank) reasons.insert(reasons.end(), of_rank->begin(), of_rank->end());
  }
  if (!is_known) return "n/a";
  if (reasons.empty()) return "none";
  std::sort(reasons.begin(), reasons.end());
  reasons.erase(std::unique(reasons.begin(), reasons.end()), reasons.end());
  return printable(fmt::format("{}", fmt::join(reasons, ", ")));
}

// The extreme over the devices that tell.
template <typename Less>
std::optional<int64_t> extreme(const Records& records,
                               std::optional<int64_t> DeviceCounters::*figure,
                               Less&& less) {
  std::optional<int64_t> found;
  for (const DeviceCountersRecord& record : records) {
    const auto& value = record.counters.*figure;
    if (value && (!found || less(*value, *found))) found = value;
  }
  return found;
}

}  // namespace

void add_counters(Lines& out, const RunRecord& record) {
  const Records& records = record.device_counters;
  if (records.empty()) return;
  std::string line = "energy: n/a";
  if (record.energy) {
    line = fmt::format("energy: {} J, {} J per token",
                       number(record.energy->joules),
                       number(record.energy->joules_per_token));
  }
  line += "; throttled: " + held_down(records);
  const auto slowest = extreme(records, &DeviceCounters::sm_clock_mhz_min, std::less<>());
  const auto fastest = extreme(records, &DeviceCounters::sm_clock_mhz_max, std::greater<>());
  const auto hottest = extreme(records, &DeviceCounters::temperature_c_max, std::greater<>());
  if (slowest && fastest) line += fmt::format("; SM clock {} to {} MHz", *slowest, *fastest);
  if (hottest) line += fmt::format("; at most {} C", *hottest);
  out.wrapped(line, "  ");
}

}  // namespace testbed::table
