#include "parallel/comm/nccl_log.hpp"

#include <algorithm>
#include <deque>
#include <fstream>
#include <iterator>
#include <utility>

#include "parallel/comm/nccl_log_line.hpp"

namespace testbed {
namespace {

using nccl_line::Call;
using nccl_line::Channel;
using nccl_line::Choice;
using nccl_line::Cursor;
using nccl_line::Init;
using nccl_line::Line;

// Lines of channels and choices name no communicator. It is the one whose set-up runs in the same
// thread; else (connections are made at the first use, by threads of their own) that of the
// collective called last.
class Reader {
 public:
  void read(std::string_view text) {
    const auto line = nccl_line::read_line(text);
    if (!line) return;
    if (line->is_warning) {
      report_.warnings.emplace_back(line->message);
    } else if (const auto init = nccl_line::read_init(line->message)) {
      on_init(*line, *init);
    } else if (nccl_line::is_channel(line->message)) {
      on_channel(*line);
    } else if (nccl_line::is_choice(line->message)) {
      on_choice(*line);
    } else if (const auto call = nccl_line::read_call(line->message)) {
      on_call(*line, *call);
    } else {
      on_remark(line->message);
    }
  }
  void skip() { ++report_.n_unread; }
  NcclLogReport take() { return std::move(report_); }

 private:
  using Thread = std::pair<int64_t, int64_t>;  // process, thread
  struct Pending {
    std::string function;
    int64_t n_bytes;
    size_t communicator;
  };

  LoggedCommunicator& at(size_t index) { return report_.communicators[index]; }

  std::optional<size_t> find(uint64_t handle) const {
    const LoggedCommunicator* found = report_.communicator(handle);
    if (found == nullptr) return std::nullopt;
    return static_cast<size_t>(found - report_.communicators.data());
  }

  void on_init(const Line& line, const Init& init) {
    std::optional<size_t> index;
    if (init.is_complete) index = find(init.handle);
    if (!index || at(*index).is_complete) {  // its START was not seen
      index = report_.communicators.size();
      report_.communicators.push_back({.handle = init.handle,
                                       .rank = init.rank,
                                       .n_ranks = init.n_ranks,
                                       .parent = init.parent});
    }
    at(*index).is_complete = init.is_complete;
    latest_ = *index;
    if (init.is_complete) {
      in_set_up_.erase({line.pid, line.tid});
    } else {
      in_set_up_[{line.pid, line.tid}] = *index;
    }
  }

  void on_call(const Line& line, const Call& call) {
    const auto index = find(call.handle);
    if (!index) return;
    called_[line.pid] = *index;
    ++at(*index).n_calls;
    if (at(*index).rank != 0 || !nccl_line::op_of(call.function)) return;
    constexpr size_t most = 4096;  // calls that NCCL serves in ways it does not tell
    if (pending_.size() == most) pending_.pop_front();
    pending_.push_back({std::string(call.function), call.n_bytes, *index});
  }

  static bool may_own(const LoggedCommunicator& c, const Channel& channel) {
    const int mine = channel.is_receive ? channel.target : channel.source;
    return c.rank == mine && std::max(channel.source, channel.target) < c.n_ranks &&
           channel.source >= 0 && channel.target >= 0;
  }

  std::optional<size_t> owner(const Line& line, const Channel& channel) {
    std::vector<size_t> candidates;
    if (const auto at = in_set_up_.find({line.pid, line.tid}); at != in_set_up_.end()) {
      candidates.push_back(at->second);
    }
    if (const auto at = called_.find(line.pid); at != called_.end()) {
      candidates.push_back(at->second);
    }
    if (latest_) candidates.push_back(*latest_);
    for (size_t i = report_.communicators.size(); i-- > 0;) candidates.push_back(i);
    for (const size_t candidate : candidates) {
      if (may_own(at(candidate), channel)) return candidate;
    }
    return std::nullopt;
  }

  void on_channel(const Line& line) {
    const auto channel = nccl_line::read_channel(line.message);
    if (!channel) {
      ++report_.n_unread;
      return;
    }
    const auto index = owner(line, *channel);
    if (!index) {
      ++report_.n_unplaced;
      return;
    }
    auto& peers = channel->is_receive ? at(*index).from : at(*index).to;
    peers[channel->is_receive ? channel->source : channel->target].insert(channel->transport);
  }

  // Each call of a communicator's rank 0 is followed by its choice, after those of its group.
  std::optional<size_t> caller(const Choice& choice) {
    const auto call = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) {
      return p.function == choice.function && p.n_bytes == choice.n_bytes;
    });
    if (call != pending_.end()) {
      const size_t index = call->communicator;
      pending_.erase(call);
      return index;
    }
    // Calls are not in the log: it must be the only one that can have told.
    std::optional<size_t> only;
    for (size_t i = 0; i < report_.communicators.size(); ++i) {
      if (at(i).rank != 0 || at(i).n_ranks < 2) continue;
      if (only) return std::nullopt;
      only = i;
    }
    return only;
  }

  void on_choice(const Line& line) {
    const auto choice = nccl_line::read_choice(line.message);
    if (!choice) {
      ++report_.n_unread;
      return;
    }
    const auto op = nccl_line::op_of(choice->function);
    if (!op) return;  // a function that nothing here calls
    const auto index = caller(*choice);
    if (!index) {
      ++report_.n_unplaced;
      return;
    }
    const NcclChoice mine{choice->n_bytes, *op, choice->algorithm, choice->protocol};
    std::vector<NcclChoice>& known = at(*index).choices;
    if (std::find(known.begin(), known.end(), mine) == known.end()) known.push_back(mine);
  }

  void on_remark(std::string_view message) {
    Cursor cursor(message);
    uint64_t handle = 0;
    if (cursor.skip("Using network ")) {
      report_.network = cursor.rest();
    } else if (cursor.skip("NCCL version ")) {
      std::string_view version;
      if (cursor.word(version)) report_.version = version;
    } else if (cursor.skip("NVLS multicast support is ")) {
      report_.nvls_available = cursor.rest().starts_with("available");
    } else if (cursor.skip("NVLS comm ") && cursor.pointer(handle)) {
      if (const auto index = find(handle)) at(*index).has_nvls = true;
    } else if (message.starts_with("NCCL_")) {
      on_variable(cursor);
    }
  }

  // "NCCL_NET set by environment to IB", "NCCL_P2P_DISABLE set by environment to 1."
  void on_variable(Cursor cursor) {
    std::string_view name;
    if (!cursor.word(name) ||
        !(cursor.skip(" set by environment to ") || cursor.skip(" set to "))) {
      return;
    }
    std::string_view value = cursor.rest();
    if (value.ends_with('.')) value.remove_suffix(1);
    report_.environment.insert_or_assign(std::string(name), std::string(value));
  }

  NcclLogReport report_;
  std::map<Thread, size_t> in_set_up_;
  std::map<int64_t, size_t> called_;  // process -> communicator of its last call
  std::optional<size_t> latest_;
  std::deque<Pending> pending_;
};

std::string_view name_of(NcclTransport transport, P2pLink p2p) {
  switch (transport) {
    case NcclTransport::p2p:
      if (p2p == P2pLink::unknown) return "p2p";
      return p2p == P2pLink::nvlink ? "nvlink" : "pcie-p2p";
    case NcclTransport::mnnvl:
      return "nvlink";
    case NcclTransport::shm:
      return "shm";
    case NcclTransport::ib:
      return "ib";
    case NcclTransport::ib_gdr:
      return "ib+gdr";
    case NcclTransport::socket:
      return "socket";
    case NcclTransport::other_net:
      return "net";
  }
  return "unknown";
}

}  // namespace

std::set<NcclTransport> LoggedCommunicator::transports() const {
  std::set<NcclTransport> all;
  for (const auto* peers : {&to, &from}) {
    for (const auto& [peer, transports] : *peers) all.insert(transports.begin(), transports.end());
  }
  return all;
}

const LoggedCommunicator* NcclLogReport::communicator(uint64_t handle) const {
  const auto found = std::find_if(communicators.rbegin(),
                                  communicators.rend(),
                                  [&](const LoggedCommunicator& c) { return c.handle == handle; });
  return found == communicators.rend() ? nullptr : &*found;
}

NcclLogReport read_nccl_log(std::istream& log) {
  Reader reader;
  std::string line;
  while (std::getline(log, line)) {
    if (log.eof()) {  // no end of line: cut off, perhaps in the middle of what counts
      reader.skip();
      break;
    }
    if (line.ends_with('\r')) line.pop_back();
    reader.read(line);
  }
  return reader.take();
}

std::optional<NcclLogReport> read_nccl_log(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return read_nccl_log(file);
}

const NcclChoice* find_choice(const std::vector<NcclChoice>& choices,
                              CommOp op,
                              int64_t payload_bytes,
                              int group_size) {
  const bool by_part = op == CommOp::all_gather || op == CommOp::reduce_scatter;
  const int64_t n_bytes = by_part ? payload_bytes / group_size : payload_bytes;
  const auto found = std::find_if(choices.rbegin(), choices.rend(), [&](const NcclChoice& c) {
    return c.op == op && c.n_bytes == n_bytes;
  });
  return found == choices.rend() ? nullptr : &*found;
}

std::string transport_name(const std::set<NcclTransport>& transports, P2pLink p2p) {
  std::set<std::string_view> names;  // sorted, so that every rank says the same
  for (const NcclTransport transport : transports) names.insert(name_of(transport, p2p));
  if (names.empty()) return "unknown";
  if (names.size() == 1) return std::string(*names.begin());
  std::string text;
  for (const std::string_view name : names) {
    text += (text.empty() ? "mixed:" : ",");
    text += name;
  }
  return text;
}

}  // namespace testbed
