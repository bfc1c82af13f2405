// What rank 0 hears of the others once a case could not be carried out, and whom it blames. The
// others are played by a channel on which their answers come when they would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <new>
#include <thread>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "parallel/comm/sim_control.hpp"
#include "runtime/accept/absence.hpp"
#include "runtime/commands/accept.hpp"
#include "runtime/commands/accept_attempts.hpp"

namespace testbed {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// As a rank packs it: its error, which is not its own, and no messages.
Bytes answer(const std::string& error) {
  ByteWriter out;
  out.put(error);
  out.put(false);
  for (int i = 0; i < 2; ++i) {
    out.put(false);
    out.put(Message{});
  }
  return out.take();
}

// Rank 0's. A rank that answers does so `after_s`, on a clock that only waits move.
class Others final : public ControlChannel {
 public:
  Others(int size, double after_s) : size_(size), after_s_(after_s) {}
  void let_answer(int rank, Bytes bytes) { answers_[rank] = std::move(bytes); }
  void set_patience(double s) { patience_s_ = s; }
  double waited_for_the_silent_s() const { return silent_s_; }
  const std::vector<Bytes>& heard_by_rank_1() const { return heard_; }

  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::string host() const override { return "a"; }
  Bytes broadcast(Bytes from_root, int /*root*/) override { return from_root; }
  std::vector<Bytes> gather(Bytes mine, int /*root*/) override { return {std::move(mine)}; }
  std::vector<Bytes> all_gather(Bytes mine) override { return {std::move(mine)}; }
  void barrier() override {}
  void post(Bytes message, int target) override {
    if (target == 1) heard_.push_back(std::move(message));
  }
  Bytes receive(int source) override {
    const auto found = answers_.find(source);
    if (found == answers_.end()) {
      silent_s_ += patience_s_;
      std::this_thread::sleep_for(std::chrono::duration<double>(patience_s_));
      throw CommError("no answer");
    }
    if (after_s_ > patience_s_) throw CommError("no answer yet");
    after_s_ = 0.0;  // by now all of them have
    return found->second;
  }

 private:
  int size_;
  double after_s_;
  double patience_s_ = 0.0;
  double silent_s_ = 0.0;
  std::map<int, Bytes> answers_;
  std::vector<Bytes> heard_;
};

template <typename Failure>
class FailingStage final : public Stage {
 public:
  explicit FailingStage(Failure failure) : failure_(std::move(failure)) {}
  std::string_view name() const override { return "links"; }
  std::vector<PlannedCase> plan(const AcceptPlanInput& /*input*/) const override { return {}; }
  CaseResult run(const AcceptContext& /*context*/, const PlannedCase& /*planned*/) override {
    throw Failure(failure_);
  }

 private:
  Failure failure_;
};

class Job {
 public:
  Job(int size, double timeout_s, double answers_after_s)
      : others(size, answers_after_s), hosts_(static_cast<size_t>(size), "a") {
    config_.timeout_s = timeout_s;
  }

  template <typename Failure>
  CaseOutcome fails_by(const Failure& failure) {
    const AcceptContext context{.config = config_,
                                .profile = profile_,
                                .rank = 0,
                                .size = others.size(),
                                .hosts = hosts_,
                                .control = control_,
                                .judging = others,
                                .set_patience = [this](double s) { others.set_patience(s); },
                                .watchdog = watchdog_,
                                .awaited_message = [] { return std::nullopt; },
                                .given_message = [] { return std::nullopt; },
                                .whereabouts = [](const std::vector<int>&) { return ""; },
                                .device = device_,
                                .machine = {},
                                .facts = {},
                                .make_group = {},
                                .with_rank = {}};
    FailingStage<Failure> stage(failure);
    return run_case(context, stage, {.stage = "links", .name = "all", .deadline_s = 1e9});
  }

  Others others;

 private:
  AcceptConfig config_;
  AcceptanceProfile profile_;
  std::vector<std::string> hosts_;
  SoloControl control_;
  Watchdog watchdog_{{}};
  CpuDevice device_{std::make_shared<cpu::ThreadPool>(1, false), cpu::best_isa(), DType::F32};
};

std::vector<std::vector<int>> ranks_of(const std::vector<Blame>& blamed) {
  std::vector<std::vector<int>> ranks;
  ranks.reserve(blamed.size());
  for (const Blame& blame : blamed) ranks.push_back(blame.ranks);
  return ranks;
}

// The others sit in a collective until its deadline, 120 s later.
TEST(AcceptAnswers, who_waits_for_rank_0_is_heard_and_rank_0_is_blamed) {
  Job job(4, 120.0, 120.0);
  for (const int rank : {1, 2, 3}) {
    job.others.let_answer(rank, answer("barrier: ranks 0 did not arrive"));
  }
  const CaseOutcome outcome = job.fails_by(DeviceError("cudaMalloc: out of memory"));
  EXPECT_TRUE(outcome.ended);
  EXPECT_THAT(ranks_of(outcome.result.blamed), ElementsAre(ElementsAre(0)));
  EXPECT_EQ(outcome.result.reason, "rank 0 (a): cudaMalloc: out of memory");
  EXPECT_THAT(outcome.result.notes, Each(HasSubstr("ranks 0 did not arrive")));
  EXPECT_THAT(outcome.result.notes, testing::SizeIs(3));
  // Before that they are asked for patience, or those that were early would not wait for the rest.
  EXPECT_THAT(job.others.heard_by_rank_1(), testing::SizeIs(2));
}

// Of two hosts one is frozen.
TEST(AcceptAnswers, the_silent_cost_a_second_together) {
  Job job(16, 0.0, 0.0);  // a deadline of 0 s has passed
  std::vector<std::vector<int>> frozen;
  for (int rank = 1; rank < 16; ++rank) {
    if (rank < 8) {
      job.others.let_answer(rank, answer("barrier: ranks 8 did not arrive"));
    } else {
      frozen.push_back({rank});
    }
  }
  const CaseOutcome outcome = job.fails_by(CommError("barrier: ranks 8 did not arrive"));
  EXPECT_LE(job.others.waited_for_the_silent_s(), 1.01);
  EXPECT_EQ(ranks_of(outcome.result.blamed), frozen);
  EXPECT_THAT(outcome.result.reason, HasSubstr("rank 8 (a): does not answer"));
  EXPECT_THAT(outcome.result.notes, Contains(Not(HasSubstr("does not answer"))));
}

TEST(AcceptExitCode, an_internal_error_is_no_reject) {
  const auto code_of = [](const std::function<int()>& work) {
    try {
      with_exit_code_of_verdict(work);
    } catch (const ConfigError&) {
      return -2;
    } catch (const Error& e) {
      return static_cast<int>(e.code());
    }
    return -1;
  };
  EXPECT_EQ(code_of([]() -> int { throw std::bad_alloc(); }), 3);
  EXPECT_EQ(code_of([]() -> int { CHECK(false); }), 3);
  EXPECT_EQ(code_of([]() -> int { throw Error(ExitCode::internal_error, "a bug"); }), 3);
  EXPECT_EQ(code_of([]() -> int { throw CommError("gone"); }), 3);
  EXPECT_EQ(code_of([]() -> int { throw ConfigError("a mistake"); }), -2);  // the very same
  EXPECT_EQ(with_exit_code_of_verdict([] { return 1; }), 1);
}

}  // namespace
}  // namespace testbed
