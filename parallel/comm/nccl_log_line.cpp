#include "parallel/comm/nccl_log_line.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace testbed::nccl_line {
namespace {

bool equal_names(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::toupper(x) == std::toupper(y);
  });
}

// In the order of ncclAlgoStr, which older logs print as numbers.
constexpr std::pair<std::string_view, CommAlgorithm> algorithms[] = {
    {"TREE", CommAlgorithm::tree},
    {"RING", CommAlgorithm::ring},
    {"COLLNET_DIRECT", CommAlgorithm::collnet},
    {"COLLNET_CHAIN", CommAlgorithm::collnet},
    {"NVLS", CommAlgorithm::nvls},
    {"NVLS_TREE", CommAlgorithm::nvls_tree},
    {"PAT", CommAlgorithm::pat}};
// In the order of ncclProtoStr.
constexpr std::pair<std::string_view, NcclProtocol> protocols[] = {
    {"LL", NcclProtocol::ll}, {"LL128", NcclProtocol::ll128}, {"SIMPLE", NcclProtocol::simple}};

// By name or index; nullopt: NCCL has something new.
template <typename Value, size_t n>
std::optional<Value> look_up(const std::pair<std::string_view, Value> (&table)[n],
                             std::string_view text) {
  for (const auto& [name, value] : table) {
    if (equal_names(name, text)) return value;
  }
  size_t index = 0;
  Cursor cursor(text);
  if (!cursor.number(index) || !cursor.rest().empty() || index >= n) return std::nullopt;
  return table[index].second;
}

// Kernels on symmetric memory (2.27 on): rows gathered and summed by each rank (AGxLL_R), or each
// part summed by its owner (RSx...); MC: the switch multicasts or sums.
std::optional<CommAlgorithm> symmetric_algorithm(std::string_view kernel) {
  const auto has = [&](std::string_view part) {
    return kernel.find(part) != std::string_view::npos;
  };
  if (has("MC")) return CommAlgorithm::nvls;
  if (has("AllReduce")) return has("RSx") ? CommAlgorithm::two_shot : CommAlgorithm::one_shot;
  if (has("AllGather") || has("ReduceScatter")) return CommAlgorithm::direct;
  return std::nullopt;
}

// "IB/0/GDRDMA(PCI)/Shared", "Socket/1", "AWS Libfabric/0": a network's name and what it does.
NcclTransport network_transport(std::string_view text) {
  const std::string_view name = text.substr(0, text.find('/'));
  if (name.starts_with("IB")) {  // and the plugin's IBext_v8
    return text.find("/GDRDMA") == std::string_view::npos ? NcclTransport::ib
                                                          : NcclTransport::ib_gdr;
  }
  return name == "Socket" ? NcclTransport::socket : NcclTransport::other_net;
}

std::optional<NcclTransport> transport_of(std::string_view via) {
  Cursor cursor(via);
  if (cursor.skip("P2P/MNNVL")) return NcclTransport::mnnvl;
  if (cursor.skip("P2P/")) return NcclTransport::p2p;
  if (cursor.skip("SHM/")) return NcclTransport::shm;
  // A network's line names its device: one that ends before is cut off.
  if (cursor.skip("NET/") && cursor.rest().find('/') != std::string_view::npos) {
    return network_transport(cursor.rest());
  }
  return std::nullopt;
}

// ncclDataType_t's sizes, by number.
constexpr std::array<int64_t, 12> datatype_bytes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// "3[1]": a rank and, in brackets, its device.
bool read_rank(Cursor& cursor, int& rank) {
  return cursor.number(rank) && cursor.skip("[") && cursor.skip_to("]");
}

bool read_plain_choice(Cursor& cursor, Choice& choice) {
  std::string_view algorithm;
  std::string_view protocol;
  if (!cursor.skip("Algo ") || !cursor.word(algorithm) || !cursor.skip(" proto ") ||
      !cursor.word(protocol) || !cursor.skip(" ")) {
    return false;
  }
  const auto known = look_up(algorithms, algorithm);
  if (!known) return false;
  choice.algorithm = *known;
  choice.protocol = look_up(protocols, protocol).value_or(NcclProtocol::unknown);
  return true;
}

bool read_symmetric_choice(Cursor& cursor, Choice& choice) {
  std::string_view kernel;
  if (!cursor.skip("Kernel ") || !cursor.word(kernel) || !cursor.skip(" ")) return false;
  const auto known = symmetric_algorithm(kernel);
  if (!known) return false;
  choice.algorithm = *known;
  choice.protocol =
      kernel.find("LL") == std::string_view::npos ? NcclProtocol::simple : NcclProtocol::ll;
  return true;
}

}  // namespace

std::optional<Line> read_line(std::string_view text) {
  constexpr std::string_view info = " NCCL INFO ";
  constexpr std::string_view warning = " NCCL WARN ";
  Line line;
  size_t at = text.find(info);
  if (at == std::string_view::npos) {
    at = text.find(warning);
    line.is_warning = true;
  }
  if (at == std::string_view::npos) return std::nullopt;
  line.message = text.substr(at + info.size());  // as long as the warning's
  // The process is the last word in front of " [cudaDev]".
  const std::string_view head = text.substr(0, text.substr(0, at).rfind(" ["));
  const std::string_view process = head.substr(head.find_last_of(" \t") + 1);
  const size_t second = process.rfind(':');
  if (second == std::string_view::npos || second == 0) return line;
  const size_t first = process.rfind(':', second - 1);
  Cursor cursor(process.substr(first == std::string_view::npos ? 0 : first + 1));
  if (!cursor.number(line.pid) || !cursor.skip(":") || !cursor.number(line.tid)) {
    line.pid = line.tid = 0;
  }
  return line;
}

std::optional<Init> read_init(std::string_view message) {
  Init init;
  init.is_complete = message.ends_with("Init COMPLETE");
  if (!init.is_complete && !message.ends_with("Init START")) return std::nullopt;
  Cursor cursor(message);
  if (!cursor.skip("comm ") && !cursor.skip_to(" comm ")) return std::nullopt;
  if (!cursor.pointer(init.handle) || !cursor.skip(" rank ") || !cursor.number(init.rank) ||
      !cursor.skip(" nranks ") || !cursor.number(init.n_ranks)) {
    return std::nullopt;
  }
  uint64_t parent = 0;
  if (cursor.skip_to(" parent ") && cursor.pointer(parent)) init.parent = parent;
  return init;
}

bool is_channel(std::string_view message) {
  return message.starts_with("Channel ") && message.find("->") != std::string_view::npos;
}

std::optional<Channel> read_channel(std::string_view message) {
  Channel channel;
  Cursor cursor(message);
  if (!cursor.skip("Channel ") || !cursor.skip_to(" : ") || !read_rank(cursor, channel.source) ||
      !cursor.skip(" -> ") || !read_rank(cursor, channel.target)) {
    return std::nullopt;
  }
  channel.is_receive = cursor.skip(" [receive]");
  if (!channel.is_receive) cursor.skip(" [send]");
  if (!cursor.skip(" via ")) return std::nullopt;
  const auto transport = transport_of(cursor.rest());
  if (!transport) return std::nullopt;
  channel.transport = *transport;
  return channel;
}

std::optional<Call> read_call(std::string_view message) {
  Call call;
  Cursor cursor(message);
  int64_t count = 0;
  size_t datatype = 0;
  if (!cursor.word(call.function, ":") || !cursor.skip(": opCount ") ||
      !cursor.skip_to(" count ") || !cursor.number(count) || !cursor.skip(" datatype ") ||
      !cursor.number(datatype) || datatype >= datatype_bytes.size() || !cursor.skip_to(" comm ") ||
      !cursor.pointer(call.handle)) {
    return std::nullopt;
  }
  if (count < 0 || count > INT64_MAX / datatype_bytes[datatype]) return std::nullopt;
  call.n_bytes = count * datatype_bytes[datatype];
  return call;
}

bool is_choice(std::string_view message) {
  return message.find(" Bytes -> ") != std::string_view::npos;
}

std::optional<Choice> read_choice(std::string_view message) {
  Choice choice;
  Cursor cursor(message);
  if (!cursor.word(choice.function, " :")) return std::nullopt;
  const bool is_symmetric = cursor.skip(" [Symmetric]");
  if (!cursor.skip(": ") || !cursor.number(choice.n_bytes) || !cursor.skip(" Bytes -> ")) {
    return std::nullopt;
  }
  const bool is_read =
      is_symmetric ? read_symmetric_choice(cursor, choice) : read_plain_choice(cursor, choice);
  return is_read ? std::optional(choice) : std::nullopt;
}

std::optional<CommOp> op_of(std::string_view function) {
  constexpr std::pair<std::string_view, CommOp> functions[] = {
      {"AllReduce", CommOp::all_reduce},
      {"AllGather", CommOp::all_gather},
      {"ReduceScatter", CommOp::reduce_scatter},
      {"Broadcast", CommOp::broadcast}};
  for (const auto& [name, op] : functions) {
    if (name == function) return op;
  }
  return std::nullopt;
}

}  // namespace testbed::nccl_line
