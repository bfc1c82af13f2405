// What NCCL did, by its own word: its debug log (NCCL_DEBUG=INFO), one file per process, in the
// format of NCCL 2.28 and the few older spellings. It names for each channel what it goes through,
// and on a communicator's rank 0 the algorithm and protocol of each collective. A line that cannot
// be read is counted and skipped: a log may end anywhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.hpp"

namespace testbed {

// Between two ranks. p2p: one GPU reads or writes the other's memory, over NVLink or PCIe, which
// the log does not tell; mnnvl: over the NVLink domain of several hosts.
enum class NcclTransport : uint8_t { p2p, mnnvl, shm, ib, ib_gdr, socket, other_net };

enum class NcclProtocol : uint8_t { unknown, ll, ll128, simple };
constexpr std::string_view nccl_protocol_name(NcclProtocol p) {
  constexpr std::string_view names[] = {"unknown", "ll", "ll128", "simple"};
  return names[static_cast<int>(p)];
}

// How collectives of one kind and size are done. Trivially copyable: rank 0 of a communicator
// knows it and tells the others.
struct NcclChoice {
  int64_t n_bytes = 0;  // as NCCL counts: of one rank's part in an all-gather or reduce-scatter
  CommOp op = CommOp::all_reduce;
  CommAlgorithm algorithm = CommAlgorithm::none;
  NcclProtocol protocol = NcclProtocol::unknown;
  bool operator==(const NcclChoice&) const = default;
};

struct LoggedCommunicator {
  uint64_t handle = 0;  // the ncclComm_t, as a number
  int rank = 0;
  int n_ranks = 0;
  std::optional<uint64_t> parent;               // of a split: its handle
  bool is_complete = false;                     // "Init COMPLETE" was there
  bool has_nvls = false;                        // multicast buffers were set up
  std::map<int, std::set<NcclTransport>> to;    // peer -> what messages to it go through
  std::map<int, std::set<NcclTransport>> from;  // peer -> the same of those from it: networks only
  int64_t n_calls = 0;                          // collectives and messages it was asked for
  std::vector<NcclChoice> choices;              // distinct, in the order of their first use

  // Over all peers.
  std::set<NcclTransport> transports() const;
};

struct NcclLogReport {
  std::optional<std::string> version;              // "2.28.9+cuda13.0"
  std::optional<std::string> network;              // "IB", "Socket", a plugin's name
  std::optional<bool> nvls_available;              // the device supports multicast
  std::vector<LoggedCommunicator> communicators;   // in the order of their Init START
  std::map<std::string, std::string> environment;  // NCCL_* that it says it was told
  std::vector<std::string> warnings;               // "NCCL WARN" lines
  int64_t n_unplaced = 0;  // lines of a channel or a choice whose communicator is not known
  int64_t n_unread = 0;    // such lines that are cut off or garbled

  // The last one of that handle: freed memory is used again. nullptr: there is none.
  const LoggedCommunicator* communicator(uint64_t handle) const;
};

NcclLogReport read_nccl_log(std::istream& log);
// nullopt: there is no such file, or it cannot be opened.
std::optional<NcclLogReport> read_nccl_log(const std::filesystem::path& path);

// The choice for a collective of that payload (CommRecord::payload_bytes); the last one if NCCL
// changed its mind. nullptr: the log has none.
const NcclChoice* find_choice(const std::vector<NcclChoice>& choices,
                              CommOp op,
                              int64_t payload_bytes,
                              int group_size);

// What P2P goes over: by the devices' topology (parallel/comm/layout.hpp).
enum class P2pLink : uint8_t { unknown, nvlink, pcie };

// For the record: "nvlink", "pcie-p2p", "p2p" (link unknown), "shm", "ib", "ib+gdr", "socket",
// "net" (another), or "mixed:ib+gdr,nvlink". "unknown" for none.
std::string transport_name(const std::set<NcclTransport>& transports, P2pLink p2p);

}  // namespace testbed
