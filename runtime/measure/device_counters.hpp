// What the devices say of themselves during the timed generations, beside what was expected of
// them. docs/metrics.md defines it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/device_counters.hpp"

namespace testbed {

struct DeviceCountersRecord {
  int rank = 0;
  std::string device;  // ranks of one device have the same counters
  std::string host;    // ranks of one host have the same bytes over InfiniBand
  DeviceCounters counters;
  // What this rank's collectives and messages were to send in the same generations, over all its
  // links: the breakdown pass's bytes a repeat, times the timed repeats.
  int64_t predicted_wire_bytes = 0;
  // As links carry them, with the flags of NCCL's protocols: a range where the protocol of some is
  // not known. nullopt where that cannot be said (why_no_link_bytes).
  struct LinkBytes {
    int64_t min = 0;
    int64_t max = 0;
  };
  std::optional<LinkBytes> predicted_link_bytes = LinkBytes{};
  std::optional<std::string> why_no_link_bytes;
  std::string transport;  // what those travel over; "none": there are none
};

// Of all devices, in the timed generations.
struct EnergyRecord {
  double joules = 0.0;
  std::optional<double> joules_per_token;  // per generated token; null if there was none
};

// Two stretches as one: what either does not tell, both do not.
DeviceCounters together(const DeviceCounters& a, const DeviceCounters& b);

void put(ByteWriter& out, const DeviceCounters& counters);
DeviceCounters get_device_counters(ByteReader& in);

// The counters of several stretches: begin() and end() around each.
class CounterWindows {
 public:
  // Both empty: the device has no counters.
  CounterWindows(std::function<void()> begin, std::function<DeviceCounters()> end);
  void begin();
  void end();
  const std::optional<DeviceCounters>& total() const { return total_; }

 private:
  std::function<void()> begin_;
  std::function<DeviceCounters()> end_;
  std::optional<DeviceCounters> total_;
};

// What held the clocks down: the reasons seen, or where the looks missed it what the times say
// ("power", "heat"). nullopt: the device does not tell.
std::optional<std::vector<std::string>> what_held_clocks_down(const DeviceCounters& counters);

// Clocks held down, faults, bytes over NVLink, PCIe or InfiniBand that are not those predicted.
std::vector<std::string> counter_labels(const std::vector<DeviceCountersRecord>& records);

// Each device once; null where one does not tell.
std::optional<EnergyRecord> energy_of(const std::vector<DeviceCountersRecord>& records,
                                      int64_t n_generated);

}  // namespace testbed
