// What --inject does to a rank's operations, one by one.
#include "parallel/comm/inject.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "kernels/base/clock.hpp"

namespace testbed {
namespace {

using Kind = Injection::Kind;
using testing::HasSubstr;

constexpr int64_t ms = 1'000'000;

GroupInfo group_of(std::vector<int> world_ranks, int rank) {
  GroupInfo group{.axis = Axis::tp, .rank = rank, .size = static_cast<int>(world_ranks.size())};
  group.world_ranks = std::move(world_ranks);
  return group;
}

CommRecord collective(CommOp op) { return {.op = op, .axis = Axis::tp, .payload_bytes = 4}; }

CommRecord message(CommOp op, int peer, int64_t n_bytes = 4) {
  return {.op = op, .axis = Axis::tp, .peer = peer, .payload_bytes = n_bytes};
}

int64_t time_of(Faults& faults, const CommRecord& record, const GroupInfo& group) {
  const int64_t begin_ns = now_ns();
  faults.before(record, group);
  return now_ns() - begin_ns;
}

TEST(Faults, only_of_whom_they_concern) {
  const std::vector<Injection> injections{{.rank = 2, .delay_us = 1},
                                          {.kind = Kind::drop_link, .rank = 0, .peer = 3}};
  for (const int rank : {0, 2, 3}) EXPECT_NE(Faults::of(injections, rank, {}), nullptr) << rank;
  EXPECT_EQ(Faults::of(injections, 1, {}), nullptr);
  EXPECT_NE(Faults::of({{.rank = -1, .delay_us = 1}}, 1, {}), nullptr);
  EXPECT_EQ(Faults::of({}, 1, {}), nullptr);
}

TEST(Faults, D31_delay_every_nth_all_reduce_and_nothing_else) {
  const GroupInfo group = group_of({0, 1}, 1);
  for (const bool may_spin : {false, true}) {
    Faults faults({{.rank = 1, .delay_us = 20'000, .every = 3}}, 1, {.may_spin = may_spin});
    for (int call = 0; call < 7; ++call) {
      faults.before(collective(CommOp::barrier), group);
      EXPECT_EQ(time_of(faults, collective(CommOp::all_reduce), group) >= 20 * ms, call % 3 == 0)
          << call;
    }
  }
}

TEST(Faults, a_device_is_waited_for_before_the_delay) {
  int n_waits = 0;
  Faults faults({{.rank = 0, .delay_us = 1}}, 0, {.synchronize = [&] { ++n_waits; }});
  const GroupInfo group = group_of({0, 1}, 0);
  faults.before(collective(CommOp::barrier), group);
  EXPECT_EQ(n_waits, 0);
  faults.before(collective(CommOp::all_reduce), group);
  EXPECT_EQ(n_waits, 1);
}

// Bits of `after` that are not those of `before`, over all elements.
int64_t bits_flipped(const Tensor& before, const Tensor& after) {
  int64_t n = 0;
  const auto* a = static_cast<const uint8_t*>(before.data());
  const auto* b = static_cast<const uint8_t*>(after.data());
  for (int64_t i = 0; i < before.n_bytes(); ++i) n += __builtin_popcount(a[i] ^ b[i]);
  return n;
}

Tensor pattern(DType dtype, int64_t n) {
  Tensor x(dtype, {n});
  std::memset(x.data(), 0x5a, static_cast<size_t>(x.n_bytes()));
  return x;
}

TEST(Faults, D30_one_bit_of_the_named_all_reduce_is_flipped_and_told) {
  const GroupInfo group = group_of({4, 5}, 1);
  for (const DType dtype : {DType::F32, DType::BF16}) {
    Faults faults({{.kind = Kind::flip, .rank = 5, .at = 3}}, 5, {.seed = 7});
    for (int call = 1; call <= 4; ++call) {
      const Tensor before = pattern(dtype, 1000);
      const Tensor x = pattern(dtype, 1000);
      faults.before(collective(CommOp::all_gather), group);
      faults.after(collective(CommOp::all_gather), group, x);
      faults.before(collective(CommOp::all_reduce), group);
      faults.after(collective(CommOp::all_reduce), group, x);
      EXPECT_EQ(bits_flipped(before, x), call == 3 ? 1 : 0) << call;
    }
    ASSERT_EQ(faults.done().size(), 1U);
    EXPECT_THAT(faults.done()[0], HasSubstr("of 1000, all_reduce 0 of tp on rank 5"));
  }
}

TEST(Faults, the_seed_chooses_the_element_and_the_option_the_bit) {
  const GroupInfo group = group_of({0, 1}, 0);
  const auto flipped = [&](uint64_t seed, int bit) {
    Faults faults({{.kind = Kind::flip, .rank = 0, .bit = bit}}, 0, {.seed = seed});
    const Tensor x(DType::F32, {4096});  // zeros
    faults.before(collective(CommOp::all_reduce), group);
    faults.after(collective(CommOp::all_reduce), group, x);
    const auto* words = static_cast<const uint32_t*>(x.data());
    for (int64_t i = 0; i < 4096; ++i) {
      if (words[i] != 0) return std::pair(i, words[i]);
    }
    return std::pair(int64_t{-1}, 0U);
  };
  EXPECT_EQ(flipped(1, 30), flipped(1, 30));
  EXPECT_EQ(flipped(1, 30).second, 1U << 30U);
  EXPECT_EQ(flipped(1, 0).second, 1U);
  EXPECT_NE(flipped(1, 0).first, flipped(2, 0).first);
}

TEST(Faults, bits_on_a_device_are_flipped_there) {
  std::vector<int64_t> flipped;
  const Tensor x(DType::BF16, {64});
  Faults faults({{.kind = Kind::flip, .rank = 0, .at = 1, .bit = 5}},
                0,
                {.flip_on_device = [&](TensorView element, int bit) {
                  EXPECT_EQ(bit, 5);
                  EXPECT_EQ(element.n_elements(), 1);
                  flipped.push_back(static_cast<std::byte*>(element.data()) -
                                    static_cast<std::byte*>(x.data()));
                }});
  const GroupInfo group = group_of({0, 1}, 0);
  faults.before(collective(CommOp::all_reduce), group);
  faults.after(collective(CommOp::all_reduce), group, x);
  ASSERT_EQ(flipped.size(), 1U);
  EXPECT_TRUE(flipped[0] >= 0 && flipped[0] < 128 && flipped[0] % 2 == 0) << flipped[0];
  EXPECT_EQ(bits_flipped(Tensor(DType::BF16, {64}), x), 0);  // the host's hands stay off
}

// 5 MB at 0.1 GB/s: 50 ms, of messages to that rank only.
TEST(Faults, a_slow_link_holds_back_messages_between_its_ends) {
  const GroupInfo group = group_of({3, 7, 9}, 0);
  Faults faults({{.kind = Kind::slow_link, .rank = 9, .peer = 3, .gb_s = 0.1}}, 3, {});
  EXPECT_GE(time_of(faults, message(CommOp::send, 2, 5'000'000), group), 50 * ms);
  EXPECT_LT(time_of(faults, message(CommOp::send, 1, 5'000'000), group), 50 * ms);
  EXPECT_LT(time_of(faults, message(CommOp::recv, 2, 5'000'000), group), 50 * ms);
  EXPECT_TRUE(faults.lets_pass(message(CommOp::send, 2), group));
}

TEST(Faults, a_dropped_link_lets_no_message_pass_either_way) {
  const std::vector<Injection> drop{{.kind = Kind::drop_link, .rank = 9, .peer = 3}};
  Faults at_3(drop, 3, {});
  Faults at_9(drop, 9, {});
  const GroupInfo of_3 = group_of({3, 7, 9}, 0);
  const GroupInfo of_9 = group_of({3, 7, 9}, 2);
  EXPECT_FALSE(at_3.lets_pass(message(CommOp::send, 2), of_3));
  EXPECT_FALSE(at_9.lets_pass(message(CommOp::send, 0), of_9));
  EXPECT_TRUE(at_3.lets_pass(message(CommOp::send, 1), of_3));
  EXPECT_TRUE(at_9.lets_pass(message(CommOp::send, 1), of_9));
}

TEST(Faults, slowdowns_multiply) {
  const std::vector<Injection> twice{{.kind = Kind::slow_device, .rank = 1, .factor = 2.0},
                                     {.kind = Kind::slow_device, .rank = 1, .factor = 1.5}};
  EXPECT_EQ(Faults(twice, 1, {}).slowdown(), 3.0);
  EXPECT_EQ(Faults({{.rank = 1, .delay_us = 1}}, 1, {}).slowdown(), 1.0);
}

// How a child ends that does two operations under this fault: wait's status.
int status_of(Kind kind, int64_t at) {
  const pid_t child = fork();
  if (child == 0) {
    const GroupInfo group = group_of({0, 1}, 0);
    Faults faults({{.kind = kind, .rank = 0, .at = at}}, 0, {});
    faults.before(message(CommOp::send, 1), group);
    faults.before(collective(CommOp::barrier), group);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    kill(child, SIGKILL);
    int gone = 0;
    waitpid(child, &gone, 0);
  }
  return status;
}

TEST(Faults, a_rank_is_killed_or_stopped_at_its_nth_operation) {
  const int killed = status_of(Kind::kill, 2);
  EXPECT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL);
  const int stopped = status_of(Kind::stop, 1);
  EXPECT_TRUE(WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGSTOP);
  EXPECT_EQ(status_of(Kind::kill, 3), 0);
}

TEST(Injections, are_labelled_and_ranks_that_are_not_there_refused) {
  EXPECT_EQ(injection_label({.rank = 2, .delay_us = 5000, .every = 3}),
            "injected: delay of 5000 us on rank 2, every 3");
  EXPECT_EQ(injection_label({.rank = -1, .delay_us = 5}),
            "injected: delay of 5 us on all ranks, every 1");
  for (const Kind kind : {Kind::flip, Kind::slow_device, Kind::kill, Kind::stop}) {
    EXPECT_THAT(injection_label({.kind = kind, .rank = 6}), HasSubstr("rank 6"));
  }
  for (const Kind kind : {Kind::slow_link, Kind::drop_link}) {
    EXPECT_THAT(injection_label({.kind = kind, .rank = 6, .peer = 8}), HasSubstr("ranks 6 and 8"));
  }
  const std::vector<Injection> far{{.kind = Kind::drop_link, .rank = 0, .peer = 4}};
  EXPECT_EQ(why_no_injection(far, 4), "--inject drop-link:peer=4: there are ranks 0 to 3");
  EXPECT_EQ(why_no_injection({{.rank = 3, .delay_us = 1}}, 3),
            "--inject delay:rank=3: there are ranks 0 to 2");
  EXPECT_EQ(why_no_injection(far, 5), std::nullopt);
}

}  // namespace
}  // namespace testbed
