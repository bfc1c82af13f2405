#include "runtime/probe/fit_link.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string>

#include "kernels/base/check.hpp"
#include "parallel/comm/wire_bytes.hpp"
#include "runtime/probe/pattern_search.hpp"

namespace testbed {
namespace {

// Message layers change their ways as payloads grow: inline, through buffers, in pieces. Each range
// has its own start and rate; the last has no end. Bytes of payload per rank, as LinkTiming counts.
constexpr int64_t range_ends[] = {int64_t{4} << 10, int64_t{128} << 10, int64_t{4} << 20, 0};
constexpr double least_s = 1e-9;

// What NCCL took without saying so is modelled as a ring, as its bytes are counted.
CommAlgorithm modelled(CommAlgorithm algorithm) {
  return algorithm == CommAlgorithm::nccl ? CommAlgorithm::ring : algorithm;
}

double sent_bytes(const CollectivePoint& point) {
  constexpr int64_t element_bytes = 1;
  return static_cast<double>(
      wire_bytes(point.op, modelled(point.algorithm), point.bytes, element_bytes, 0, point.n));
}

double seconds(const ProtocolTiming& protocol, const CollectivePoint& point) {
  const double rate =
      protocol.bytes_per_s * std::pow(2.0 / static_cast<double>(point.n), protocol.sharing);
  return protocol.start_s + sent_bytes(point) / rate;
}

std::string key_of(const CollectivePoint& point) {
  return std::string(comm_op_name(point.op)) + "/" +
         std::string(algorithm_name(modelled(point.algorithm)));
}

ProtocolTiming fit_range(const std::vector<CollectivePoint>& points) {
  std::set<int> sizes;
  double least_us = points.front().us;
  double rate = 0.0;
  for (const CollectivePoint& point : points) {
    sizes.insert(point.n);
    least_us = std::min(least_us, point.us);
    rate = std::max(rate, sent_bytes(point) / (point.us * 1e-6));
  }
  const auto protocol = [](const std::vector<double>& x) {
    return ProtocolTiming{.start_s = x[0], .bytes_per_s = x[1], .sharing = x[2] - 1.0};
  };
  const auto error = [&](const std::vector<double>& x) {
    double sum = 0.0;
    for (const CollectivePoint& point : points) {
      const double ratio = std::log(seconds(protocol(x), point) / (point.us * 1e-6));
      sum += ratio * ratio;
    }
    return sum;
  };
  // Of ranks that share cores or a bus, each gets less: only several group sizes can tell.
  const double most_sharing = sizes.size() > 1 ? 4.0 : 1.0;
  return protocol(
      least_value(error,
                  {{.start = least_us * 0.5e-6, .least = least_s, .most = least_us * 1e-6},
                   {.start = rate, .least = rate * 1e-3, .most = rate * 1e3},
                   {.start = 1.0, .least = 1.0, .most = most_sharing}}));
}

}  // namespace

LinkTiming fit_link_timing(std::span<const CollectivePoint> points) {
  std::map<std::string, std::vector<CollectivePoint>> by_key;
  for (const CollectivePoint& point : points) by_key[key_of(point)].push_back(point);
  LinkTiming timing;
  for (const auto& [key, all] : by_key) {
    std::vector<ProtocolTiming>& protocols = timing.of[key];
    int64_t begin = -1;
    for (const int64_t end : range_ends) {
      std::vector<CollectivePoint> within;
      std::copy_if(all.begin(), all.end(), std::back_inserter(within), [&](const auto& point) {
        const int64_t per_rank = point.bytes / point.n;
        return per_rank > begin && (end == 0 || per_rank <= end);
      });
      begin = end;
      if (within.empty()) continue;
      protocols.push_back(fit_range(within));
      protocols.back().max_bytes = end;
    }
    protocols.back().max_bytes = 0;
    protocols.back().most_payload_bytes = all.front().most_bytes;
  }
  return timing;
}

double highest_rate(const LinkTiming& timing) {
  double highest = 0.0;
  for (const auto& [key, protocols] : timing.of) {
    for (const ProtocolTiming& protocol : protocols)
      highest = std::max(highest, protocol.bytes_per_s);
  }
  return highest;
}

double modelled_us(const LinkTiming& timing, const CollectivePoint& point) {
  const auto entry = timing.of.find(key_of(point));
  CHECK(entry != timing.of.end() && !entry->second.empty());
  const std::vector<ProtocolTiming>& protocols = entry->second;
  const auto fits = std::find_if(protocols.begin(), protocols.end(), [&](const auto& protocol) {
    return protocol.max_bytes == 0 || point.bytes / point.n <= protocol.max_bytes;
  });
  CHECK(fits != protocols.end());
  return seconds(*fits, point) * 1e6;
}

}  // namespace testbed
