// Replicas in lockstep, each on a thread of its own: equal steps everywhere, and each replica's
// answers as if it were alone.
#include "runtime/serving/lockstep.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "kernels/base/check.hpp"
#include "kernels/base/hash.hpp"
#include "tests/unit/serving_cases.hpp"

namespace testbed {
namespace {

// Messages between threads.
class Mailboxes {
 public:
  void post(Bytes message, int source, int target) {
    const std::scoped_lock lock(mutex_);
    boxes_[{source, target}].push_back(std::move(message));
    arrived_.notify_all();
  }
  Bytes receive(int source, int target) {
    std::unique_lock lock(mutex_);
    std::deque<Bytes>& box = boxes_[{source, target}];
    if (!arrived_.wait_for(lock, std::chrono::seconds(20), [&] { return !box.empty(); })) {
      throw InternalError("nobody wrote");
    }
    Bytes message = std::move(box.front());
    box.pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, std::deque<Bytes>> boxes_;
};

class MailboxControl final : public ControlChannel {
 public:
  MailboxControl(Mailboxes& boxes, int rank, int size) : boxes_(boxes), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host() const override { return "localhost"; }
  Bytes broadcast(Bytes /*from_root*/, int /*root*/) override { CHECK(false); }
  std::vector<Bytes> gather(Bytes /*mine*/, int /*root*/) override { CHECK(false); }
  std::vector<Bytes> all_gather(Bytes /*mine*/) override { CHECK(false); }
  void barrier() override { CHECK(false); }
  void post(Bytes message, int target) override { boxes_.post(std::move(message), rank_, target); }
  Bytes receive(int source) override { return boxes_.receive(source, rank_); }

 private:
  Mailboxes& boxes_;
  int rank_;
  int size_;
};

struct Played {
  std::vector<std::tuple<int32_t, Phase, size_t>> steps;  // number, phase, microbatches
  std::vector<int64_t> n_rows;                            // [step]
  std::vector<std::vector<int32_t>> generated;
};

// Ids that depend on request and position only, so that any way of stepping gives the same.
std::vector<int32_t> sampled(const StepPlan& plan) {
  std::vector<int32_t> ids;
  for (const MicrobatchPlan& microbatch : plan.microbatches) {
    for (const LogitsRow& row : microbatch.logits_rows) {
      if (!row.sample) continue;
      const auto key = static_cast<uint64_t>(row.request * 1000 + row.position);
      ids.push_back(static_cast<int32_t>(mix64(key) % 20));
    }
  }
  return ids;
}

template <typename Next>
Played play(Scheduler& scheduler, bool run_ahead, const Next& next) {
  Played played;
  std::optional<StepPlan> out;
  const auto settle = [&](const StepPlan& plan) { scheduler.update(plan.step, sampled(plan)); };
  while (std::optional<StepPlan> plan = next()) {
    played.steps.emplace_back(plan->step, plan->phase, plan->microbatches.size());
    int64_t& n_rows = played.n_rows.emplace_back(0);
    for (const MicrobatchPlan& microbatch : plan->microbatches) n_rows += microbatch.n_rows();
    if (out) settle(*out);
    out.reset();
    if (run_ahead && plan->phase == Phase::decode) {
      out = std::move(plan);
    } else {
      settle(*plan);
    }
  }
  if (out) settle(*out);
  for (size_t r = 0; r < scheduler.n_requests(); ++r) {
    played.generated.push_back(scheduler.generated(r));
  }
  return played;
}

std::vector<Played> play_in_lockstep(const std::vector<Job>& jobs) {
  Mailboxes boxes;
  std::vector<int> ranks;
  for (size_t r = 0; r < jobs.size(); ++r) ranks.push_back(static_cast<int>(4 * r));
  std::vector<Played> played(jobs.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < jobs.size(); ++r) {
    threads.emplace_back([&, r] {
      MailboxControl control(boxes, ranks[r], 4 * static_cast<int>(ranks.size()));
      Scheduler scheduler(jobs[r].requests, jobs[r].options);
      played[r] = play(scheduler, jobs[r].options.run_ahead, [&] {
        return next_in_lockstep(control, ranks, scheduler);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return played;
}

TEST(Lockstep, replicas_take_equal_steps_and_answer_as_if_alone) {
  Draws draw(8);
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(trial);
    std::vector<Job> jobs;
    const bool run_ahead = draw(0, 1) == 1;
    for (int r = draw(2, 4); r > 0; --r) {
      jobs.push_back(random_job(draw));
      jobs.back().options.run_ahead = run_ahead;
      jobs.back().options.stop_ids = {3};
      jobs.back().options.pool_blocks = blocks_for(jobs.back().requests, jobs.back().options);
    }
    const std::vector<Played> together = play_in_lockstep(jobs);
    for (size_t r = 0; r < jobs.size(); ++r) {
      Scheduler alone(jobs[r].requests, jobs[r].options);
      const Played expected = play(alone, run_ahead, [&] { return alone.next(); });
      EXPECT_EQ(together[r].generated, expected.generated);
      EXPECT_EQ(together[r].steps, together[0].steps);
    }
    for (size_t step = 0; step < together[0].steps.size(); ++step) {
      EXPECT_TRUE(std::any_of(
          together.begin(), together.end(), [&](const Played& p) { return p.n_rows[step] > 0; }))
          << "nobody needed step " << step;
    }
  }
}

TEST(Lockstep, those_who_could_decode_wait_for_the_others_prompts) {
  std::vector<Job> jobs(2);
  for (Job& job : jobs) {
    job.options.kv_groups = {{.window = 0, .layers = {0}}};
    job.options.max_step_tokens = 8;
    job.options.n_microbatches = 2;
  }
  jobs[0].requests = {request_of(0, 4, 3)};
  jobs[1].requests = {request_of(1, 20, 2), request_of(2, 4, 2)};
  const std::vector<Played> played = play_in_lockstep(jobs);
  using Steps = decltype(Played::steps);
  EXPECT_EQ(played[0].steps,
            (Steps{{0, Phase::prefill, 2},
                   {1, Phase::prefill, 2},
                   {2, Phase::prefill, 2},
                   {3, Phase::decode, 2},  // replica 0 has one row: its second microbatch is empty
                   {4, Phase::decode, 1}}));
  EXPECT_THAT(played[0].n_rows, ::testing::ElementsAre(4, 0, 0, 1, 1));
  EXPECT_THAT(played[1].n_rows, ::testing::ElementsAre(8, 8, 8, 2, 0));
}

}  // namespace
}  // namespace testbed
