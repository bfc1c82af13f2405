#include "parallel/comm/op_board.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "parallel/comm/job_processes.hpp"

namespace testbed {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

bool is_message(const OpRow::Operation& operation) {
  const auto op = static_cast<CommOp>(operation.op);
  return op == CommOp::send || op == CommOp::recv;
}

// "all_reduce 17 on tp (4 ranks from 0)", "recv 3 on pp (2 ranks from 1), its peer 0".
std::string name(const OpRow::Operation& operation) {
  std::string text = fmt::format("{} {} on {}{} ({} ranks from {})",
                                 comm_op_name(static_cast<CommOp>(operation.op)),
                                 operation.sequence,
                                 axis_name(static_cast<Axis>(operation.axis)),
                                 operation.host ? " of hosts" : "",
                                 operation.group_size,
                                 operation.group_id);
  if (is_message(operation)) text += fmt::format(", with rank {}", operation.peer);
  return text;
}

double seconds_since(int64_t ns) { return static_cast<double>(OpRow::coarse_now_ns() - ns) * 1e-9; }

bool is_inside(const OpRow& row) {
  return row.entered.load(std::memory_order_acquire) > row.left.load(std::memory_order_acquire);
}

// What a rank is at, or did last.
std::string at(const OpRow& row) {
  if (row.entered.load(std::memory_order_acquire) == 0) return "has done no operation yet";
  const OpRow::Operation operation = row.operation();
  if (is_inside(row)) {
    return fmt::format("has been in {} for {:.1f} s",
                       name(operation),
                       seconds_since(row.entered_ns.load(relaxed)));
  }
  return fmt::format(
      "left {} {:.1f} s ago", name(operation), seconds_since(row.left_ns.load(relaxed)));
}

// Of a collective: whether the row's rank has come to it, or is beyond.
bool has_arrived(const OpRow& row, const OpRow::Operation& operation) {
  OpRow::Operation theirs = row.operation();
  if (theirs.sequence < operation.sequence) return false;
  theirs.sequence = operation.sequence;
  return row.entered.load(relaxed) > 0 && theirs == operation;
}

}  // namespace

OpBoard::OpBoard(Communicator& local) : world_ranks_(local.group().world_ranks) {
  const auto index = static_cast<size_t>(local.rank());
  rank_ = world_ranks_[index];
  if (local.size() > 1) {
    segment_ = ShmSegment::make(local, int64_t{local.size()} * static_cast<int64_t>(sizeof(OpRow)))
                   .segment;
  }
  if (segment_ != nullptr) {
    rows_ = reinterpret_cast<OpRow*>(segment_->data());  // zeros are rows that did nothing
    mine_ = rows_ + index;
  } else {
    own_ = std::make_unique<OpRow>();
    mine_ = rows_ = own_.get();
    world_ranks_ = {rank_};
  }
  mine_->pid.store(getpid(), relaxed);
}

const OpRow* OpBoard::row(int world_rank) const {
  const auto found = std::find(world_ranks_.begin(), world_ranks_.end(), world_rank);
  return found == world_ranks_.end() ? nullptr : rows_ + (found - world_ranks_.begin());
}

std::string OpBoard::where(int world_rank) const {
  const OpRow& its = *row(world_rank);
  const auto pid = static_cast<pid_t>(its.pid.load(relaxed));
  const std::string state = pid == 0 ? "" : process_state(pid);
  return fmt::format(
      "rank {}{} {}", world_rank, state.empty() ? "" : fmt::format(" ({})", state), at(its));
}

std::string OpBoard::whereabouts(const std::vector<int>& world_ranks) const {
  std::string text;
  for (const int rank : world_ranks) {
    if (row(rank) != nullptr) text += "; " + where(rank);
  }
  return text;
}

std::optional<OpRow::Operation> OpBoard::awaited_message() const {
  const OpRow::Operation mine = mine_->operation();
  if (!is_inside(*mine_) || !is_message(mine)) return std::nullopt;
  return mine;
}

std::string OpBoard::ended() {
  seen_.resize(world_ranks_.size(), false);
  for (size_t i = 0; i < world_ranks_.size(); ++i) {
    const auto pid = static_cast<pid_t>(rows_[i].pid.load(relaxed));
    if (pid == 0 || (rank_ != 0 && world_ranks_[i] != 0)) continue;
    const std::string state = process_state(pid);
    const bool is_there = state != "gone" && state != "dead";
    if (!is_there && seen_[i]) return fmt::format("rank {}", world_ranks_[i]);
    seen_[i] = is_there;
  }
  return "";
}

std::string OpBoard::report() const {
  const OpRow::Operation mine = mine_->operation();
  const bool waits = is_inside(*mine_) && !is_message(mine);
  std::string text;
  for (const int rank : world_ranks_) {
    const OpRow& its = *row(rank);
    text += where(rank);
    if (waits) {
      text += has_arrived(its, mine) ? " [arrived]" : " [did not arrive]";
    }
    text += '\n';
  }
  return text;
}

}  // namespace testbed
