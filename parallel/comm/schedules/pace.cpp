#include "parallel/comm/schedules/pace.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

const ProtocolTiming* protocol_for(const LinkTiming& timing,
                                   const std::string& key,
                                   int64_t bytes_per_rank,
                                   int n_nodes) {
  const std::vector<ProtocolTiming>* const found = protocols_of(timing, key);
  if (found == nullptr) return nullptr;
  const std::vector<ProtocolTiming>& protocols = *found;
  const auto fits = std::find_if(protocols.begin(), protocols.end(), [&](const auto& protocol) {
    return (protocol.max_bytes == 0 || bytes_per_rank <= protocol.max_bytes) &&
           (protocol.max_nodes == 0 || n_nodes <= protocol.max_nodes);
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

const std::vector<ProtocolTiming>* protocols_of(const LinkTiming& timing, const std::string& key) {
  const auto entry = timing.of.find(key);
  if (entry != timing.of.end()) return entry->second.empty() ? nullptr : &entry->second;
  for (const CommOp op : {CommOp::reduce_scatter, CommOp::all_to_all}) {
    if (key != timing_key(op, CommAlgorithm::direct)) continue;
    return protocols_of(timing, timing_key(CommOp::all_gather, CommAlgorithm::direct));
  }
  return nullptr;
}

Pace pace_on(const LinkSpec& link,
             const std::string& key,
             int64_t n_bytes,
             const Sharers& sharers,
             double sent_bytes) {
  const ProtocolTiming* protocol =
      protocol_for(link.timing, key, n_bytes / sharers.n_ranks, sharers.n_nodes);
  if (protocol == nullptr) return {};  // the ideal link
  Pace pace{.start_s = protocol->start_s, .fill_s = 0.0, .step_s = protocol->step_s};
  if (protocol->bytes_per_s > 0.0) {
    pace.bytes_per_s = protocol->bytes_per_s * std::pow(2.0 / sharers.n_sharing, protocol->sharing);
  }
  const double rate = pace.bytes_per_s > 0.0 ? pace.bytes_per_s : link.bytes_per_s;
  pace.fill_s = protocol->copy_s_per_byte * static_cast<double>(n_bytes) / sharers.n_ranks +
                2.0 * std::sqrt(protocol->fill_s * sent_bytes / rate);
  return pace;
}

}  // namespace testbed
