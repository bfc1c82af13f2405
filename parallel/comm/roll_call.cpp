#include "parallel/comm/roll_call.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <thread>

#include "kernels/base/clock.hpp"

namespace testbed {
namespace {
constexpr int tag = 4;
}

RollCall::RollCall(std::vector<std::string> hosts)
    : hosts_(std::move(hosts)), words_(hosts_.size()) {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  for (int r = 0; r < static_cast<int>(words_.size()); ++r) {
    Word& word = words_[static_cast<size_t>(r)];
    if (r != rank_) word.incoming.recv(word.text.data(), sizeof word.text, r, tag, comm_);
  }
}

RollCall::~RollCall() {
  // While an error unwinds, the others may never free theirs.
  if (std::uncaught_exceptions() > 0) return;
  words_.clear();
  MPI_Comm_free(&comm_);
}

bool RollCall::is_called() { return silent().size() + 1 < words_.size(); }

void RollCall::tell(std::string_view at) {
  if (told_) return;
  told_ = true;
  Word& mine = words_[static_cast<size_t>(rank_)];
  at.copy(mine.text.data(), mine.text.size() - 1);
  for (int r = 0; r < static_cast<int>(words_.size()); ++r) {
    if (r != rank_) mine.outgoing.send(mine.text.data(), sizeof mine.text, r, tag, comm_);
  }
}

void RollCall::answer(std::string_view at) {
  if (!told_ && is_called()) tell(at);
}

std::vector<int> RollCall::silent() {
  std::vector<int> ranks;
  for (int r = 0; r < static_cast<int>(words_.size()); ++r) {
    if (r != rank_ && !words_[static_cast<size_t>(r)].incoming.test()) ranks.push_back(r);
  }
  return ranks;
}

std::string RollCall::name(int rank) const {
  return fmt::format("{} ({})", rank, hosts_[static_cast<size_t>(rank)]);
}

std::string RollCall::call(std::string_view at, double seconds) {
  tell(at);
  const int64_t deadline_ns = now_ns() + static_cast<int64_t>(seconds * 1e9);
  std::vector<int> missing = silent();
  while (!missing.empty() && now_ns() < deadline_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    missing = silent();
  }
  std::vector<std::string> names;
  names.reserve(words_.size());
  if (!missing.empty()) {
    for (const int r : missing) names.push_back(name(r));
    return fmt::format("ranks {} did not answer within {:g} s", fmt::join(names, ", "), seconds);
  }
  for (int r = 0; r < static_cast<int>(words_.size()); ++r) {
    names.push_back(fmt::format("{}: {}", name(r), words_[static_cast<size_t>(r)].text.data()));
  }
  return fmt::format("all ranks answered: {}", fmt::join(names, "; "));
}

}  // namespace testbed
