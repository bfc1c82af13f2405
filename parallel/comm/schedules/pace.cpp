#include "parallel/comm/schedules/pace.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

const ProtocolTiming* protocol_for(const LinkTiming& timing,
                                   const std::string& key,
                                   int64_t bytes_per_rank) {
  const auto entry = timing.of.find(key);
  if (entry == timing.of.end() || entry->second.empty()) return nullptr;
  const std::vector<ProtocolTiming>& protocols = entry->second;
  const auto fits = std::find_if(protocols.begin(), protocols.end(), [&](const auto& protocol) {
    return protocol.max_bytes == 0 || bytes_per_rank <= protocol.max_bytes;
  });
  return fits == protocols.end() ? &protocols.back() : &*fits;
}

}  // namespace

std::string timing_key(CommOp op, CommAlgorithm algorithm) {
  switch (op) {
    case CommOp::broadcast:
    case CommOp::barrier:
    case CommOp::send:
    case CommOp::recv:
      op = CommOp::send;
      break;
    default:
      break;
  }
  if (algorithm == CommAlgorithm::tree) algorithm = CommAlgorithm::ring;
  return std::string(comm_op_name(op)) + "/" + std::string(algorithm_name(algorithm));
}

Pace pace_on(const LinkSpec& link,
             const std::string& key,
             int64_t n_bytes,
             int n_ranks,
             int n_sharing,
             double sent_bytes) {
  const ProtocolTiming* protocol = protocol_for(link.timing, key, n_bytes / n_ranks);
  if (protocol == nullptr) return {};  // the ideal link
  Pace pace{.start_s = protocol->start_s, .fill_s = 0.0, .step_s = protocol->step_s};
  if (protocol->bytes_per_s > 0.0) {
    pace.bytes_per_s = protocol->bytes_per_s * std::pow(2.0 / n_sharing, protocol->sharing);
  }
  const double rate = pace.bytes_per_s > 0.0 ? pace.bytes_per_s : link.bytes_per_s;
  pace.fill_s = protocol->copy_s_per_byte * static_cast<double>(n_bytes) / n_ranks +
                2.0 * std::sqrt(protocol->fill_s * sent_bytes / rate);
  return pace;
}

}  // namespace testbed
