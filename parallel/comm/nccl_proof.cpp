#include "parallel/comm/nccl_proof.hpp"

#include <cstring>
#include <set>

namespace testbed {
namespace {

static_assert(std::is_trivially_copyable_v<NcclChoice> &&
              sizeof(NcclChoice) % sizeof(int32_t) == 0);

// Rank 0's, on every rank.
std::vector<NcclChoice> shared_choices(std::vector<NcclChoice> mine, Communicator& host) {
  const Tensor count(DType::I32, {1});
  *count.as<int32_t>() = static_cast<int32_t>(mine.size());
  host.broadcast(count, 0);
  mine.resize(static_cast<size_t>(*count.as<int32_t>()));
  if (mine.empty()) return mine;
  const auto n_bytes = mine.size() * sizeof(NcclChoice);
  const Tensor words(DType::I32, {static_cast<int64_t>(n_bytes / sizeof(int32_t))});
  std::memcpy(words.data(), mine.data(), n_bytes);
  host.broadcast(words, 0);
  std::memcpy(mine.data(), words.data(), n_bytes);
  return mine;
}

}  // namespace

LinkProof prove_links(const std::optional<NcclLogReport>& log,
                      const std::vector<uint64_t>& handles,
                      Communicator& host,
                      P2pLink p2p,
                      Layout layout) {
  LinkProof proof;
  std::set<NcclTransport> transports;
  std::vector<NcclChoice> choices;
  for (const uint64_t handle : handles) {
    const LoggedCommunicator* logged = log ? log->communicator(handle) : nullptr;
    if (logged == nullptr) {
      if (layout != Layout::automatic && !proof.why_not) {
        proof.why_not = "NCCL's log does not name the communicator: the layout cannot be proven";
      }
      continue;
    }
    transports.merge(logged->transports());
    choices.insert(choices.end(), logged->choices.begin(), logged->choices.end());
    if (!proof.why_not) proof.why_not = why_not_in_effect(layout, *logged, host.group());
  }
  if (!transports.empty()) proof.transport = transport_name(transports, p2p);
  proof.choices = shared_choices(std::move(choices), host);
  return proof;
}

}  // namespace testbed
