// What follows from the devices' counters: the record of each rank, labels, energy.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
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

using LinkBytes = DeviceCountersRecord::LinkBytes;

// What a counter saw sent, and what was predicted of it.
struct Sent {
  std::string by;  // "rank 3"
  int64_t counted = 0;
  LinkBytes predicted;
};

// How many times the counted bytes are above or below all that is predicted. 1: nothing to say.
double disagreement(const Sent& sent) {
  // Less is mostly kernels' flags and the counters' own steps of 1 KiB.
  constexpr int64_t least_bytes = 1 << 20;
  const int64_t nearest = std::clamp(sent.counted, sent.predicted.min, sent.predicted.max);
  const auto [less, more] = std::minmax(sent.counted, nearest);
  if (more < least_bytes) return 1.0;
  return static_cast<double>(more) / static_cast<double>(std::max<int64_t>(less, 1));
}

// Of ranks that send over such links alone, from a device of their own, what they are known to.
std::vector<Sent> sent_by_ranks(const Records& records,
                                const std::set<std::string_view>& transports,
                                std::optional<int64_t> DeviceCounters::*counter) {
  std::vector<Sent> all;
  for (const DeviceCountersRecord& record : records) {
    const auto& counted = record.counters.*counter;
    const auto& predicted = record.predicted_link_bytes;
    const auto n_sharers = std::count_if(records.begin(), records.end(), [&](const auto& other) {
      return other.device == record.device;
    });
    if (!counted || !predicted || !transports.contains(record.transport) || n_sharers > 1) continue;
    all.push_back({fmt::format("rank {}", record.rank), *counted, *predicted});
  }
  return all;
}

// PCIe counts its packets' headers, too: at most 28 bytes to 128 of payload.
std::vector<Sent> with_pcie_headers(std::vector<Sent> all) {
  for (Sent& sent : all) sent.predicted.max += sent.predicted.max * 28 / 128;
  return all;
}

// Of hosts all of whose ranks send over InfiniBand alone: the ports are the host's.
std::vector<Sent> sent_by_hosts(const Records& records) {
  std::map<std::string, std::optional<Sent>> hosts;
  for (const DeviceCountersRecord& record : records) {
    const auto& counted = record.counters.ib_tx_bytes;
    const auto& predicted = record.predicted_link_bytes;
    const bool is_ib = record.transport == "ib" || record.transport == "ib+gdr";
    auto [at, is_first] =
        hosts.try_emplace(record.host, Sent{"host " + record.host, counted.value_or(0), {}});
    if (!counted || !predicted || !is_ib) at->second = std::nullopt;
    if (!at->second) continue;
    at->second->predicted.min += predicted->min;
    at->second->predicted.max += predicted->max;
  }
  std::vector<Sent> all;
  for (auto& [host, sent] : hosts) {
    if (sent) all.push_back(std::move(*sent));
  }
  return all;
}

std::string text_of(const LinkBytes& bytes) {
  if (bytes.min == bytes.max) return fmt::format("{}", bytes.min);
  return fmt::format("{} to {}", bytes.min, bytes.max);
}

// One label for all, of the worst.
void add_link_label(std::string_view link, const std::vector<Sent>& all, Texts& labels) {
  constexpr double tolerated = 1.2;
  const auto is_tolerated = [](const Sent& sent) { return disagreement(sent) <= tolerated; };
  const auto n_off = std::count_if(all.begin(), all.end(), std::not_fn(is_tolerated));
  if (n_off == 0) return;
  const Sent& worst = *std::max_element(all.begin(), all.end(), [](const Sent& a, const Sent& b) {
    return disagreement(a) < disagreement(b);
  });
  labels.push_back(fmt::format("{}: {} counted {} bytes sent, predicted {}{}",
                               worst.by,
                               link,
                               worst.counted,
                               text_of(worst.predicted),
                               n_off == 1 ? "" : fmt::format("; the worst of {}", n_off)));
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
LinkBytes link_bytes_of(const CommRecord& comm, NcclProtocol protocol) {
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
  LinkBytes link_bytes;
  std::set<std::string> transports;
  std::set<std::string> unknown;
  for (const CommEvent& event : breakdown.timeline(rank).comms) {
    if (!is_sent_by_device(event.comm)) continue;
    wire_bytes += event.comm.wire_bytes;
    const auto protocol = input.protocol_of ? input.protocol_of(event.comm) : NcclProtocol::unknown;
    const LinkBytes on_links = link_bytes_of(event.comm, protocol);
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
      .host = breakdown.timeline(rank).host,
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
  add_link_label(
      "NVLink", sent_by_ranks(records, {"nvlink"}, &DeviceCounters::nvlink_tx_bytes), labels);
  add_link_label("PCIe",
                 with_pcie_headers(
                     sent_by_ranks(records, {"pcie-p2p", "shm"}, &DeviceCounters::pcie_tx_bytes)),
                 labels);
  add_link_label("InfiniBand", sent_by_hosts(records), labels);
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
