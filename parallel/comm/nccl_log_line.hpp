// The lines of NCCL's debug log that matter, one reader each. Formats: NCCL 2.28 src/init.cc,
// src/enqueue.cc, src/transport/*.cc, in comments beside the reader.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/comm/nccl_log.hpp"

namespace testbed::nccl_line {

// Reads a line from the left; each step says whether it could.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}
  std::string_view rest() const { return text_; }

  bool skip(std::string_view literal) {
    if (!text_.starts_with(literal)) return false;
    text_.remove_prefix(literal.size());
    return true;
  }
  // Behind the next occurrence.
  bool skip_to(std::string_view literal) {
    const size_t at = text_.find(literal);
    if (at == std::string_view::npos) return false;
    text_.remove_prefix(at + literal.size());
    return true;
  }
  template <typename Integer>
  bool number(Integer& value, int base = 10) {
    const auto [end, error] =
        std::from_chars(text_.data(), text_.data() + text_.size(), value, base);
    if (error != std::errc{}) return false;
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return true;
  }
  bool pointer(uint64_t& value) { return skip("0x") && number(value, 16); }
  // Up to one of the stops, at least one character.
  bool word(std::string_view& value, std::string_view stops = " ") {
    value = text_.substr(0, text_.find_first_of(stops));
    text_.remove_prefix(value.size());
    return !value.empty();
  }

 private:
  std::string_view text_;
};

struct Line {
  int64_t pid = 0;
  int64_t tid = 0;
  bool is_warning = false;
  std::string_view message;
};
// "host:pid:tid [cudaDev] NCCL INFO message", or "... [cudaDev] file.cc:line NCCL WARN message";
// a time stamp may be in front.
std::optional<Line> read_line(std::string_view text);

struct Init {
  uint64_t handle = 0;
  int rank = 0;
  int n_ranks = 0;
  std::optional<uint64_t> parent;
  bool is_complete = false;  // "Init COMPLETE", not "Init START"
};
// "ncclCommInitRankConfig comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 commId 0x1 -
// Init START", "ncclCommSplit comm ... parent 0x55 splitCount 2 color 0 key 0 - Init COMPLETE"
std::optional<Init> read_init(std::string_view message);

struct Channel {
  int source = 0;
  int target = 0;
  bool is_receive = false;  // the line is the target's
  NcclTransport transport = NcclTransport::p2p;
};
// "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
// "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA(PCI)/Shared"
std::optional<Channel> read_channel(std::string_view message);
bool is_channel(std::string_view message);  // even if it cannot be read

struct Call {
  std::string_view function;  // "AllReduce"
  int64_t n_bytes = 0;
  uint64_t handle = 0;
};
// "AllReduce: opCount 0 sendbuff 0x7f recvbuff 0x7f count 1024 datatype 9 op 0 root 0 comm 0x55
// [nranks=8] stream 0x66"
std::optional<Call> read_call(std::string_view message);

struct Choice {
  std::string_view function;
  int64_t n_bytes = 0;
  CommAlgorithm algorithm = CommAlgorithm::none;
  NcclProtocol protocol = NcclProtocol::unknown;
};
// "AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}", "AllReduce: 8192 Bytes ->
// Algo 1 proto 0 time 12.3" before 2.24, "AllReduce [Symmetric]: 8192 Bytes -> Kernel
// AllReduce_RSxLD_AGxST nchannels 8 nthreads 512 nWorks 1"
std::optional<Choice> read_choice(std::string_view message);
bool is_choice(std::string_view message);  // even if it cannot be read

// The functions that are operations here.
std::optional<CommOp> op_of(std::string_view function);

}  // namespace testbed::nccl_line
