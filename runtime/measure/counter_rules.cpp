// What follows from the devices' counters: the record of each rank, labels, energy.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.hpp"
#include "runtime/measure/breakdown.hpp"
#include "runtime/measure/device_counters.hpp"

namespace testbed {
namespace {

using Records = std::vector<DeviceCountersRecord>;
using Texts = std::vector<std::string>;

// "rank 3", "ranks 3, 5"
std::string named(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

void add_clock_labels(const Records& records, Texts& labels) {
  std::map<Texts, std::vector<int>> ranks_of;
  for (const DeviceCountersRecord& record : records) {
    const Texts reasons = what_held_clocks_down(record.counters).value_or(Texts{});
    if (!reasons.empty()) ranks_of[reasons].push_back(record.rank);
  }
  for (const auto& [reasons, ranks] : ranks_of) {
    labels.push_back(
        fmt::format("{}: clocks held down: {}", named(ranks), fmt::join(reasons, ", ")));
  }
}

void add_fault_labels(const Records& records, Texts& labels) {
  for (const DeviceCountersRecord& record : records) {
    const DeviceCounters& c = record.counters;
    if (c.xids && !c.xids->empty()) {
      labels.push_back(fmt::format("rank {}: Xid {}", record.rank, fmt::join(*c.xids, ", ")));
    }
    if (c.ecc_uncorrected.value_or(0) > 0) {
      labels.push_back(
          fmt::format("rank {}: uncorrected ECC errors: {}", record.rank, *c.ecc_uncorrected));
    }
  }
}

// Of a rank that sends over NVLink alone, from a device of its own, what it is known to: how many
// times the counted bytes are above or below all that is predicted. 1: nothing to say.
double disagreement(const Records& records, const DeviceCountersRecord& record) {
  // Less is mostly kernels' flags and the counters' own steps of 1 KiB.
  constexpr int64_t least_bytes = 1 << 20;
  const auto& counted = record.counters.nvlink_tx_bytes;
  const auto n_sharers = std::count_if(records.begin(), records.end(), [&](const auto& other) {
    return other.device == record.device;
  });
  const auto& predicted = record.predicted_link_bytes;
  if (!counted || !predicted || record.transport != "nvlink" || n_sharers > 1) return 1.0;
  const int64_t nearest = std::clamp(*counted, predicted->min, predicted->max);
  const auto [less, more] = std::minmax(*counted, nearest);
  if (more < least_bytes) return 1.0;
  return static_cast<double>(more) / static_cast<double>(std::max<int64_t>(less, 1));
}

std::string text_of(const DeviceCountersRecord::LinkBytes& bytes) {
  if (bytes.min == bytes.max) return fmt::format("{}", bytes.min);
  return fmt::format("{} to {}", bytes.min, bytes.max);
}

// One label for all ranks, of the worst.
void add_nvlink_label(const Records& records, Texts& labels) {
  constexpr double tolerated = 1.2;
  const DeviceCountersRecord* worst = nullptr;
  int n_ranks = 0;
  for (const DeviceCountersRecord& record : records) {
    const double factor = disagreement(records, record);
    if (factor <= tolerated) continue;
    ++n_ranks;
    if (worst == nullptr || factor > disagreement(records, *worst)) worst = &record;
  }
  if (worst == nullptr) return;
  labels.push_back(
      fmt::format("rank {}: NVLink counted {} bytes sent, predicted {}{}",
                  worst->rank,
                  *worst->counters.nvlink_tx_bytes,
                  text_of(*worst->predicted_link_bytes),
                  n_ranks == 1 ? "" : fmt::format("; the worst of {} ranks", n_ranks)));
}

bool is_sent_by_device(const CommRecord& comm) {
  return !comm.host && comm.group_size > 1 && comm.wire_bytes > 0;
}

bool is_of_kernels(CommAlgorithm algorithm) {
  return algorithm == CommAlgorithm::one_shot || algorithm == CommAlgorithm::two_shot ||
         algorithm == CommAlgorithm::one_shot_norm;
}

// Why nothing can be said of what links carry for an operation; "": it can.
std::string why_no_link_bytes(CommAlgorithm algorithm) {
  switch (algorithm) {
    case CommAlgorithm::nvls:
    case CommAlgorithm::nvls_tree:
    case CommAlgorithm::collnet:
      return fmt::format("switches took part ({}): what they send is not counted here",
                         algorithm_name(algorithm));
    case CommAlgorithm::nccl:
      return "NCCL's algorithm is not known";
    default:
      return "";
  }
}

// NCCL's LL sends 4 bytes of flags with 4 of data, LL128 8 with 120, Simple none.
DeviceCountersRecord::LinkBytes link_bytes_of(const CommRecord& comm, NcclProtocol protocol) {
  const int64_t n = comm.wire_bytes;
  if (is_of_kernels(comm.algorithm)) return {n, n};
  switch (protocol) {
    case NcclProtocol::ll:
      return {2 * n, 2 * n};
    case NcclProtocol::ll128:
      return {n + n / 15, n + n / 15};
    case NcclProtocol::simple:
      return {n, n};
    case NcclProtocol::unknown:
      break;
  }
  // Messages, whose protocol the log does not name, are LL's up to a size (NCCL_P2P_LL_THRESHOLD).
  constexpr int64_t most_ll_bytes = 16384;
  const bool is_message = comm.op == CommOp::send || comm.op == CommOp::all_to_all;
  const int64_t n_messages = comm.op == CommOp::send ? 1 : comm.group_size - 1;
  const bool may_be_ll = !is_message || n <= most_ll_bytes * n_messages;
  return {n, may_be_ll ? 2 * n : n};
}

DeviceCountersRecord record_of(const Breakdown& breakdown, int rank, DeviceCounters counters) {
  const AnalysisInput& input = breakdown.input;
  int64_t wire_bytes = 0;
  DeviceCountersRecord::LinkBytes link_bytes;
  std::set<std::string> transports;
  std::set<std::string> unknown;
  for (const CommEvent& event : breakdown.timeline(rank).comms) {
    if (!is_sent_by_device(event.comm)) continue;
    wire_bytes += event.comm.wire_bytes;
    const auto protocol = input.protocol_of ? input.protocol_of(event.comm) : NcclProtocol::unknown;
    const DeviceCountersRecord::LinkBytes on_links = link_bytes_of(event.comm, protocol);
    link_bytes.min += on_links.min;
    link_bytes.max += on_links.max;
    const std::string why_not = why_no_link_bytes(event.comm.algorithm);
    if (!why_not.empty()) unknown.insert(why_not);
    const auto transport = input.transports.find(event.comm.axis);
    transports.insert(transport == input.transports.end() ? "unknown" : transport->second);
  }
  const auto in_timed = [&](int64_t n_bytes) {
    return per_rounded(n_bytes * static_cast<int64_t>(input.timed.size()),
                       static_cast<int64_t>(breakdown.repeats.size()));
  };
  DeviceCountersRecord record{
      .rank = rank,
      .device = input.peaks[static_cast<size_t>(rank)].memory_domain,
      .counters = std::move(counters),
      .predicted_wire_bytes = in_timed(wire_bytes),
      .predicted_link_bytes = {{in_timed(link_bytes.min), in_timed(link_bytes.max)}},
      .why_no_link_bytes = std::nullopt,
      .transport = transports.empty() ? "none" : fmt::format("{}", fmt::join(transports, ", "))};
  if (!unknown.empty()) {
    record.predicted_link_bytes = std::nullopt;
    record.why_no_link_bytes = fmt::format("{}", fmt::join(unknown, ", "));
  }
  return record;
}

}  // namespace

std::optional<Texts> what_held_clocks_down(const DeviceCounters& c) {
  if (!c.throttle_reasons && !c.power_throttled_s && !c.thermal_throttled_s) return std::nullopt;
  Texts reasons = c.throttle_reasons.value_or(Texts{});
  if (!reasons.empty()) return reasons;
  if (c.power_throttled_s.value_or(0.0) > 0.0) reasons.emplace_back("power");
  if (c.thermal_throttled_s.value_or(0.0) > 0.0) reasons.emplace_back("heat");
  return reasons;
}

Texts counter_labels(const Records& records) {
  Texts labels;
  add_clock_labels(records, labels);
  add_fault_labels(records, labels);
  add_nvlink_label(records, labels);
  return labels;
}

std::optional<EnergyRecord> energy_of(const Records& records, int64_t n_generated) {
  if (records.empty()) return std::nullopt;
  EnergyRecord energy;
  std::set<std::string_view> seen;
  for (const DeviceCountersRecord& record : records) {
    if (!seen.insert(record.device).second) continue;
    if (!record.counters.joules) return std::nullopt;
    energy.joules += *record.counters.joules;
  }
  if (n_generated > 0) energy.joules_per_token = energy.joules / static_cast<double>(n_generated);
  return energy;
}

void add_device_counters(const Breakdown& breakdown, RunRecord& record) {
  const AnalysisInput& input = breakdown.input;
  CHECK(input.counters.empty() || input.counters.size() == input.timelines.size());
  int64_t n_generated = 0;
  for (const GenerationTiming& repeat : input.timed) {
    for (const RequestTiming& request : repeat.requests) n_generated += request.n_generated;
  }
  record.device_counters.reserve(input.counters.size());
  for (size_t rank = 0; rank < input.counters.size(); ++rank) {
    if (!input.counters[rank]) continue;
    record.device_counters.push_back(
        record_of(breakdown, static_cast<int>(rank), *input.counters[rank]));
  }
  // Energy is of all devices, or not known.
  if (record.device_counters.size() == input.timelines.size()) {
    record.energy = energy_of(record.device_counters, n_generated);
  }
}

}  // namespace testbed
