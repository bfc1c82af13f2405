// Two ranks exchange messages, one of which arrives with a flipped bit: whichever it is, it is
// seen.
#include <gmock/gmock.h>

#include "kernels/cpu/cpu_device.hpp"
#include "parallel/comm/inject.hpp"
#include "parallel/comm/mpi_world.hpp"
#include "runtime/accept/pair_exchange.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

MpiWorld* world = nullptr;

// Which of the messages that this rank is given, counted from 0, has a bit flipped; -1: none.
struct Flip {
  int at = -1;
  int n_received = 0;
};

// Only messages.
class FlippingCommunicator final : public Communicator {
 public:
  FlippingCommunicator(std::unique_ptr<Communicator> inner, Flip& flip)
      : Communicator(inner->group()), inner_(std::move(inner)), flip_(flip) {}
  std::string_view transport() const override { return inner_->transport(); }

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t /*n_bytes*/) const override {
    return CommAlgorithm::direct;
  }

 private:
  struct Work final : Pending::Work {
    Work(Pending the_message, TensorView the_buffer, bool flips)
        : message(std::make_unique<Pending>(std::move(the_message))),
          buffer(the_buffer),
          is_flipped(flips) {}
    void wait() override {
      message->wait();
      if (is_flipped) flip_bit(buffer.rows(0, 1), 3);
    }
    std::unique_ptr<Pending> message;  // whose destructor may throw
    TensorView buffer;
    bool is_flipped;
  };
  void do_all_reduce(TensorView /*x*/, CommAlgorithm /*algorithm*/) override {}
  void do_all_gather(TensorView /*local*/, TensorView /*out*/) override {}
  void do_reduce_scatter(TensorView /*x*/, TensorView /*out*/) override {}
  RowsSent do_all_to_all(TensorView /*send*/,
                         std::span<const int64_t> /*send_rows*/,
                         TensorView /*recv*/,
                         std::span<const int64_t> /*recv_rows*/,
                         const RowExchange& /*exchange*/) override {
    return {};
  }
  void do_broadcast(TensorView /*x*/, int /*root*/) override {}
  void do_barrier() override {}
  std::unique_ptr<Pending::Work> do_send(TensorView x, int target) override {
    return std::make_unique<Work>(inner_->send(x, target), x, false);
  }
  std::unique_ptr<Pending::Work> do_recv(TensorView x, int source) override {
    const bool flips = flip_.n_received++ == flip_.at;
    return std::make_unique<Work>(inner_->recv(x, source), x, flips);
  }

  std::unique_ptr<Communicator> inner_;
  Flip& flip_;
};

TEST(AcceptPairs, AFlippedBitOfAnyMessageIsSeen) {
  const AcceptConfig config;
  const AcceptanceProfile profile;
  CpuDevice device(std::make_shared<cpu::ThreadPool>(1, false), cpu::best_isa(), DType::F32);
  const auto control = world->make_control();
  Watchdog watchdog{{}};
  Flip flip;
  const AcceptContext context{
      .config = config,
      .profile = profile,
      .rank = world->rank(),
      .size = world->size(),
      .hosts = world->hosts(),
      .control = *control,
      .judging = *control,
      .watchdog = watchdog,
      .device = device,
      .make_group = [&](const std::vector<int>& ranks, Axis axis) -> std::unique_ptr<Communicator> {
        return std::make_unique<FlippingCommunicator>(world->make_group(ranks, axis), flip);
      }};
  PairExchange exchange(context, {.n_bytes = 16, .n_calls = 3, .both_ways = true});
  const auto wrong_when = [&](int receiver, int at) {
    flip = {.at = context.rank == receiver ? at : -1};
    const SamplesOfPairs samples = exchange.measure({{{0, 1}}});
    return samples.empty() ? std::nullopt : samples.at({0, 1}).wrong;
  };
  EXPECT_FALSE(wrong_when(0, -1));
  const int n_messages = flip.n_received;
  // A handshake and four trials; then a warm-up and a repeat, one way and both ways, each of a
  // handshake and three messages.
  EXPECT_EQ(n_messages, 5 + 2 * 2 * 4);
  for (int receiver = 0; receiver < 2; ++receiver) {
    for (int at = 0; at < n_messages; ++at) {
      const std::optional<WrongMessage> wrong = wrong_when(receiver, at);
      if (context.rank != 0) continue;  // is told nothing
      EXPECT_TRUE(wrong) << "message " << at << " to rank " << receiver;
      if (!wrong) continue;  // the other rank goes on, too
      EXPECT_EQ(wrong->from, 1 - receiver);
      EXPECT_EQ(wrong->to, receiver);
      EXPECT_EQ(wrong->bytes.first, 0);
      EXPECT_EQ(wrong->bytes.count, 1);
      EXPECT_EQ(wrong->bytes.is ^ wrong->bytes.should_be, 1 << 3);
    }
  }
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) { return testbed::run_all_tests(argc, argv, testbed::world); }
