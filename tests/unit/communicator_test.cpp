// What every communicator has in common: its accounting, the sum in rank order, and what --inject
// and the clocks compute.
#include "parallel/comm/communicator.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/base/clock.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "parallel/comm/clock_sync.hpp"
#include "parallel/comm/ordered_sum.hpp"
#include "parallel/comm/solo.hpp"

namespace testbed {
namespace {

struct Records final : CommSink {
  std::vector<CommRecord> all;
  void on_comm(const CommRecord& record) override { all.push_back(record); }
};

// Sends nothing; its messages complete when waited for, or fail.
class SilentCommunicator final : public Communicator {
 public:
  SilentCommunicator(int rank, int size, CommAlgorithm algorithm)
      : Communicator(
            {.axis = Axis::tp, .rank = rank, .size = size, .world_ranks = world_ranks(size)}),
        algorithm_(algorithm) {}
  std::string_view transport() const override { return "none"; }
  int n_waits = 0;
  bool fails = false;

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t /*n_bytes*/) const override { return algorithm_; }

 private:
  struct Work final : Pending::Work {
    explicit Work(SilentCommunicator& communicator) : owner(communicator) {}
    void wait() override {
      ++owner.n_waits;
      if (owner.fails) throw CommError("too late");
    }
    int64_t arrived_ns() const override { return 42; }
    SilentCommunicator& owner;
  };
  static std::vector<int> world_ranks(int size) {
    std::vector<int> ranks;
    ranks.reserve(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) ranks.push_back(10 + r);
    return ranks;
  }
  void do_all_reduce(TensorView /*x*/, CommAlgorithm /*algorithm*/) override {}
  void do_all_gather(TensorView /*local*/, TensorView /*out*/) override {}
  void do_reduce_scatter(TensorView /*x*/, TensorView /*out*/) override {}
  RowsSent do_all_to_all(TensorView /*send*/,
                         std::span<const int64_t> /*send_rows*/,
                         TensorView /*recv*/,
                         std::span<const int64_t> /*recv_rows*/,
                         const RowExchange& /*exchange*/) override {
    return {CommAlgorithm::hierarchical, 99};
  }
  void do_broadcast(TensorView /*x*/, int /*root*/) override {}
  void do_barrier() override {}
  std::unique_ptr<Pending::Work> do_send(TensorView /*x*/, int /*target*/) override {
    return std::make_unique<Work>(*this);
  }
  std::unique_ptr<Pending::Work> do_recv(TensorView /*x*/, int /*source*/) override {
    return std::make_unique<Work>(*this);
  }
  CommAlgorithm algorithm_;
};

CommRecord all_reduce_record(int rank, int size, CommAlgorithm algorithm, DType dtype, int64_t n) {
  SilentCommunicator group(rank, size, algorithm);
  Records records;
  group.set_sink(&records);
  group.all_reduce(Tensor(dtype, {n}));
  return records.all.at(0);
}

TEST(Communicator, all_reduce_bytes) {
  const CommRecord one = all_reduce_record(1, 4, CommAlgorithm::one_shot, DType::F32, 10);
  EXPECT_EQ(one.payload_bytes, 40);
  EXPECT_EQ(one.wire_bytes, 120);
  EXPECT_EQ(one.group_id, 10);
  EXPECT_EQ(one.group_size, 4);
  const CommRecord even = all_reduce_record(1, 4, CommAlgorithm::two_shot, DType::BF16, 8);
  EXPECT_EQ(even.payload_bytes, 16);
  EXPECT_EQ(even.wire_bytes, 24);  // 2 * 3/4 * 16
  // 10 = 3 + 3 + 2 + 2: a rank with 3 sends 7 contributions and its 3 sums thrice, one with 2 sends
  // 8 and 2 thrice.
  EXPECT_EQ(all_reduce_record(0, 4, CommAlgorithm::two_shot, DType::F32, 10).wire_bytes,
            (7 + 9) * 4);
  EXPECT_EQ(all_reduce_record(3, 4, CommAlgorithm::two_shot, DType::F32, 10).wire_bytes,
            (8 + 6) * 4);
  // Fewer elements than ranks.
  EXPECT_EQ(all_reduce_record(0, 4, CommAlgorithm::two_shot, DType::F32, 1).wire_bytes, 3 * 4);
  EXPECT_EQ(all_reduce_record(3, 4, CommAlgorithm::two_shot, DType::F32, 1).wire_bytes, 4);
}

TEST(Communicator, a_collective_or_message_of_nothing_is_no_call) {
  SilentCommunicator group(1, 4, CommAlgorithm::one_shot);
  Records records;
  group.set_sink(&records);
  group.all_reduce(Tensor(DType::F32, {0, 8}));
  group.all_gather(Tensor(DType::F32, {0}), Tensor(DType::F32, {4, 0}));
  group.send(Tensor(DType::F32, {0}), 2).wait();
  EXPECT_TRUE(records.all.empty());
}

// Hooks see each operation of a group of several ranks, before it is stamped and after it is done.
struct Seen final : CommHooks {
  std::vector<std::string> all;
  bool passes = true;
  void before(const CommRecord& record, const GroupInfo& /*group*/) override {
    all.push_back("before " + std::string(comm_op_name(record.op)));
  }
  void after(const CommRecord& record, const GroupInfo& /*group*/, TensorView result) override {
    all.push_back("after " + std::string(comm_op_name(record.op)) + " of " +
                  std::to_string(result.empty() ? 0 : result.n_elements()));
  }
  bool lets_pass(const CommRecord& /*record*/, const GroupInfo& /*group*/) override {
    return passes;
  }
};

TEST(Communicator, hooks_are_told_of_what_a_group_does) {
  const auto seen = std::make_shared<Seen>();
  SilentCommunicator group(0, 2, CommAlgorithm::one_shot);
  group.add_hooks(seen);
  group.all_reduce(Tensor(DType::F32, {8}));
  group.all_reduce(Tensor(DType::F32, {0}));
  group.barrier();
  group.send(Tensor(DType::F32, {3}), 1).wait();
  const std::vector<std::string> expected{"before all_reduce",
                                          "after all_reduce of 8",
                                          "before barrier",
                                          "after barrier of 0",
                                          "before send"};
  EXPECT_EQ(seen->all, expected);
  EXPECT_EQ(group.n_waits, 1);
  seen->passes = false;
  group.send(Tensor(DType::F32, {3}), 1).wait();
  EXPECT_EQ(group.n_waits, 1);  // it was never sent
  seen->all.clear();
  SilentCommunicator alone(0, 1, CommAlgorithm::one_shot);
  alone.add_hooks(seen);
  alone.all_reduce(Tensor(DType::F32, {8}));
  EXPECT_TRUE(seen->all.empty());
}

TEST(Communicator, a_row_shows_what_a_rank_is_at_and_keeps_what_failed) {
  OpRow row{};
  SilentCommunicator group(0, 2, CommAlgorithm::one_shot);
  group.set_row(&row);
  group.barrier();
  group.all_reduce(Tensor(DType::F32, {8}));
  EXPECT_EQ(row.entered.load(), 2);
  EXPECT_EQ(row.left.load(), 2);
  const OpRow::Operation second{.op = static_cast<uint8_t>(CommOp::all_reduce),
                                .axis = static_cast<uint8_t>(Axis::tp),
                                .group_id = 10,
                                .group_size = 2,
                                .sequence = 1};
  EXPECT_EQ(row.operation(), second);
  group.fails = true;
  Pending message = group.recv(Tensor(DType::F32, {8}), 1);
  EXPECT_EQ(row.entered.load(), 2);  // on its way, and nobody waits
  EXPECT_THROW(message.wait(), CommError);
  EXPECT_EQ(row.entered.load(), 3);
  EXPECT_EQ(row.left.load(), 2);
  EXPECT_EQ(row.operation().peer, 11);  // of the world
}

TEST(Communicator, reduce_scatter_bytes) {
  SilentCommunicator group(1, 4, CommAlgorithm::one_shot);
  Records records;
  group.set_sink(&records);
  group.reduce_scatter(Tensor(DType::BF16, {8, 3}), Tensor(DType::BF16, {2, 3}));
  ASSERT_EQ(records.all.size(), 1U);
  EXPECT_EQ(records.all[0].op, CommOp::reduce_scatter);
  EXPECT_EQ(records.all[0].algorithm, CommAlgorithm::direct);
  EXPECT_EQ(records.all[0].payload_bytes, 48);
  EXPECT_EQ(records.all[0].wire_bytes, 36);  // 3/4
  const Tensor x(DType::F32, {8});
  EXPECT_THROW(group.reduce_scatter(x, Tensor(DType::F32, {3})), InternalError);
  EXPECT_THROW(group.reduce_scatter(x, Tensor(DType::BF16, {4})), InternalError);
}

// What it sent is told by the transport, when all ranks' rows are known.
TEST(Communicator, all_to_all_records_what_was_sent) {
  SilentCommunicator group(1, 2, CommAlgorithm::one_shot);
  Records records;
  group.set_sink(&records);
  const Tensor five(DType::BF16, {5, 3});
  const Tensor two(DType::BF16, {2, 3});
  const std::vector<int64_t> out{4, 1};
  const std::vector<int64_t> in{1, 1};
  group.all_to_all(five, out, two, in);
  ASSERT_EQ(records.all.size(), 1U);
  EXPECT_EQ(records.all[0].payload_bytes, 30);
  EXPECT_EQ(records.all[0].wire_bytes, 99);
  EXPECT_EQ(records.all[0].algorithm, CommAlgorithm::hierarchical);
  const std::vector<int64_t> short_of{4};
  const std::vector<int64_t> too_many{1, 2};
  EXPECT_THROW(group.all_to_all(five, short_of, two, in), InternalError);
  EXPECT_THROW(group.all_to_all(five, out, two, too_many), InternalError);
  EXPECT_THROW(group.all_to_all(five, out, Tensor(DType::F32, {2, 3}), in), InternalError);
  const std::vector<int64_t> of_two_nodes{1, 1};
  const RowExchange how{.kind = RowExchange::Kind::dispatch, .node_rows = of_two_nodes};
  EXPECT_THROW(group.all_to_all(five, out, two, in, how), InternalError);  // all are on one
}

TEST(Communicator, rows_have_bytes_also_when_there_are_none) {
  EXPECT_EQ(row_bytes({nullptr, DType::BF16, {0, 3, 5}}), 30);
  EXPECT_EQ(row_bytes({nullptr, DType::F32, {7}}), 4);
}

TEST(Communicator, a_group_of_one_reports_nothing) {
  SoloCommunicator solo(3);
  Records records;
  solo.set_sink(&records);
  Tensor x(DType::F32, {4});
  Tensor all(DType::F32, {1, 4});
  x.as<float>()[2] = 5;
  solo.all_reduce(x);
  solo.all_gather(x, all);
  solo.broadcast(x, 0);
  solo.barrier();
  Tensor scattered(DType::F32, {4});
  Tensor exchanged(DType::F32, {4});
  const std::vector<int64_t> four{4};
  solo.reduce_scatter(x, scattered);
  solo.all_to_all(x, four, exchanged, four);
  EXPECT_EQ(scattered.as<float>()[2], 5);
  EXPECT_EQ(exchanged.as<float>()[2], 5);
  EXPECT_TRUE(records.all.empty());
  EXPECT_EQ(all.as<float>()[2], 5);
}

TEST(Communicator, messages_are_numbered_by_pair_and_direction) {
  SilentCommunicator group(0, 3, CommAlgorithm::one_shot);
  Tensor x(DType::F32, {2});
  group.send(x, 1).wait();  // unheard, but counted
  Records records;
  group.set_sink(&records);
  group.send(x, 1).wait();
  group.send(x, 2).wait();
  group.recv(x, 1).wait();
  ASSERT_EQ(records.all.size(), 3U);
  EXPECT_EQ(records.all[0].sequence, 1);
  EXPECT_EQ(records.all[1].sequence, 0);
  EXPECT_EQ(records.all[2].sequence, 0);
  EXPECT_EQ(records.all[0].wire_bytes, 8);
  EXPECT_EQ(records.all[2].wire_bytes, 0);
  EXPECT_EQ(records.all[2].arrived_ns, 42);
}

TEST(Communicator, a_tensor_without_data_is_an_error) {
  SilentCommunicator group(0, 2, CommAlgorithm::one_shot);
  const TensorView nothing(nullptr, DType::F32, {4});
  EXPECT_THROW(group.all_reduce(nothing), InternalError);
  EXPECT_THROW(group.broadcast(nothing, 0), InternalError);
  EXPECT_THROW((void)group.send(nothing, 1), InternalError);
  EXPECT_THROW((void)group.send(Tensor(DType::F32, {1}), 2), InternalError);
  EXPECT_NO_THROW(group.all_reduce(TensorView(nullptr, DType::F32, {0})));
}

TEST(Pending, waits_once_also_when_dropped_or_replaced) {
  SilentCommunicator group(0, 2, CommAlgorithm::one_shot);
  Tensor x(DType::F32, {2});
  {
    Pending first = group.send(x, 1);
    Pending moved = std::move(first);
    moved = group.send(x, 1);
    EXPECT_EQ(group.n_waits, 1);
    moved.wait();
    moved.wait();
    EXPECT_EQ(group.n_waits, 2);
    const Pending dropped = group.send(x, 1);
  }
  EXPECT_EQ(group.n_waits, 3);
}

TEST(Pending, a_failure_is_thrown_wherever_it_shows) {
  SilentCommunicator group(0, 2, CommAlgorithm::one_shot);
  group.fails = true;
  Tensor x(DType::F32, {2});
  EXPECT_THROW(group.recv(x, 1).wait(), CommError);
  Pending replaced = group.recv(x, 1);
  EXPECT_THROW(replaced = group.recv(x, 1), CommError);
  EXPECT_THROW({ const Pending dropped = group.recv(x, 1); }, CommError);
}

TEST(SumInOrder, order_shows_in_f32) {
  // (1e8 + -1e8) + 1 = 1, but 1e8 + (-1e8 + 1) = 0.
  const float a = 1e8F;
  const float b = -1e8F;
  const float c = 1;
  float out = 0;
  sum_in_order({&a, &b, &c}, &out, 1, DType::F32);
  EXPECT_EQ(out, 1.0F);
  sum_in_order({&c, &b, &a}, &out, 1, DType::F32);
  EXPECT_EQ(out, 0.0F);
}

TEST(SumInOrder, bf16_is_rounded_once) {
  // bf16 has 8 bits: 256 + 1 rounds to 256 each time, but 256 + 1 + 1 + 1 = 259 is nearest to 260
  // (spacing 2, ties to even).
  const bf16 large = to_bf16(256);
  const bf16 one = to_bf16(1);
  bf16 out;
  sum_in_order({&large, &one, &one, &one}, &out, 1, DType::BF16);
  EXPECT_EQ(to_f32(out), 260.0F);
}

TEST(SumInOrder, in_place_over_several_blocks_and_nan) {
  constexpr int64_t n = 5001;
  std::vector<float> a(n);
  std::vector<float> b(n);
  for (int64_t i = 0; i < n; ++i) {
    a[static_cast<size_t>(i)] = static_cast<float>(i);
    b[static_cast<size_t>(i)] = static_cast<float>(2 * i);
  }
  b[17] = std::numeric_limits<float>::quiet_NaN();
  sum_in_order({a.data(), b.data()}, b.data(), n, DType::F32);
  for (int64_t i = 0; i < n; ++i) {
    if (i == 17) continue;
    ASSERT_EQ(b[static_cast<size_t>(i)], static_cast<float>(3 * i));
  }
  EXPECT_TRUE(std::isnan(b[17]));
}

TEST(SumInOrder, every_version_gives_the_serial_sum) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const size_t n_parts : {2U, 3U, 8U}) {
      constexpr int64_t n = 2051;  // two blocks and a rest that fills no vector
      std::vector<Tensor> tensors;
      std::vector<const void*> parts;
      for (size_t r = 0; r < n_parts; ++r) {
        const Tensor& x = tensors.emplace_back(dtype, Shape{n});
        parts.push_back(x.data());
        for (int64_t i = 0; i < n; ++i) {
          const uint64_t bits = mix64(r * 100'000 + static_cast<uint64_t>(i));
          const float value =
              std::ldexp(static_cast<float>(bits >> 40) - 8388608.0F, static_cast<int>(bits % 8));
          if (dtype == DType::F32) x.as<float>()[i] = value;
          if (dtype == DType::BF16) x.as<bf16>()[i] = to_bf16(value);
        }
      }
      for (const SumInOrder version : sum_in_order_versions()) {
        Tensor out(dtype, {n});
        version(parts, out.data(), n, dtype);
        for (int64_t i = 0; i < n; ++i) {
          volatile float sum = 0;  // as written, one addition after the other
          for (const Tensor& x : tensors)
            sum = sum + (dtype == DType::F32 ? x.as<float>()[i] : to_f32(x.as<bf16>()[i]));
          const float actual = dtype == DType::F32 ? out.as<float>()[i] : to_f32(out.as<bf16>()[i]);
          const float expected = dtype == DType::F32 ? sum : to_f32(to_bf16(sum));
          ASSERT_EQ(actual, expected) << n_parts << " parts, element " << i;
        }
      }
    }
  }
}

TEST(ClockOffset, is_the_middle_of_the_round_trip) {
  // My clock is 1000 ns behind; the way there takes 30, the way back 70.
  const ClockOffset offset = offset_of_round_trip(500, 500 + 1000 + 30, 600);
  EXPECT_LE(std::abs(offset.offset_ns - 1000), offset.error_ns);
  EXPECT_EQ(offset.offset_ns, 980);
  EXPECT_EQ(offset.error_ns, 51);
}

}  // namespace
}  // namespace testbed
