// Devices with counters (stand-ins on CPU ranks) through a whole run: read around the timed
// generations and around nothing else, summed, and brought to rank 0.
#include "launch/cpu_rank.hpp"
#include "tests/mpi/fixtures_runs.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

MpiWorld* world = nullptr;
CpuProcess* process = nullptr;

// Counts what a run does outside windows too.
struct StandIn {
  int n_windows = 0;
  int n_read_loops_in_windows = 0;
  bool is_open = false;

  void begin() {
    EXPECT_FALSE(is_open);
    is_open = true;
  }
  DeviceCounters end() {
    EXPECT_TRUE(is_open);
    is_open = false;
    ++n_windows;
    return {.seconds = 1.5, .joules = 100.0 * (world->rank() + 1), .ecc_uncorrected = 0};
  }
  void install(MachineInfo& machine) {
    machine.begin_counters = [this] { begin(); };
    machine.end_counters = [this] { return end(); };
    machine.read_bandwidth_sample = [this, read = machine.read_bandwidth_sample] {
      n_read_loops_in_windows += is_open ? 1 : 0;
      return read();
    };
    machine.memory_domain = fmt::format("device {}", world->rank());
  }
};

RunConfig toy_run() {
  const std::string model = "llama3_gqa";
  const fixtures::Split split{.mesh = {.tp = world->size()}, .ways = {}};
  RunConfig config = fixtures::config_of(model, split, fixtures::read_reference(model), "");
  config.output.logits.reset();
  config.workload.gen_tokens = 3;
  config.warmup = 1;
  config.repeats = 2;
  return config;
}

TEST(Counters, are_of_the_timed_generations) {
  const RunConfig config = toy_run();
  const RunInputs inputs = open_inputs(config, {.tp = world->size()}, *world->make_control());
  const CpuRank rank(*world, *process, config, inputs);
  RankContext context = rank.context();
  StandIn stand_in;
  stand_in.install(context.machine);
  const std::optional<RunOutcome> outcome = run_rank(context);
  EXPECT_EQ(stand_in.n_windows, config.repeats);
  EXPECT_EQ(stand_in.n_read_loops_in_windows, 0);
  if (world->rank() != 0) return;

  const RunRecord& record = outcome->record;
  ASSERT_EQ(record.device_counters.size(), static_cast<size_t>(world->size()));
  double joules = 0.0;
  for (const DeviceCountersRecord& of_rank : record.device_counters) {
    EXPECT_DOUBLE_EQ(of_rank.counters.seconds, 3.0);
    EXPECT_DOUBLE_EQ(of_rank.counters.joules.value(), 200.0 * (of_rank.rank + 1));
    EXPECT_EQ(of_rank.counters.ecc_uncorrected, 0);
    EXPECT_EQ(of_rank.counters.nvlink_tx_bytes, std::nullopt);
    // Every repeat sends the same, and the breakdown pass had as many.
    int64_t wire_bytes = 0;
    for (const CommEvent& event : outcome->timelines[static_cast<size_t>(of_rank.rank)].comms) {
      if (!event.comm.host) wire_bytes += event.comm.wire_bytes;
    }
    EXPECT_EQ(of_rank.predicted_wire_bytes, wire_bytes);
    EXPECT_EQ(wire_bytes > 0, world->size() > 1);
    joules += *of_rank.counters.joules;
  }
  int64_t n_tokens = 0;
  for (const RequestRecord& request : record.run.requests) n_tokens += request.generated_tokens;
  EXPECT_DOUBLE_EQ(record.energy.value().joules, joules);
  EXPECT_DOUBLE_EQ(record.energy.value().joules_per_token.value(),
                   joules / static_cast<double>(config.repeats * n_tokens));
}

TEST(Counters, are_not_there_on_cpus) {
  const RunConfig config = toy_run();
  const RunInputs inputs = open_inputs(config, {.tp = world->size()}, *world->make_control());
  const CpuRank rank(*world, *process, config, inputs);
  const std::optional<RunOutcome> outcome = run_rank(rank.context());
  if (world->rank() != 0) return;
  EXPECT_TRUE(outcome->record.device_counters.empty());
  EXPECT_FALSE(outcome->record.energy);
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  testbed::MpiWorld world;
  testbed::CpuProcess process(world, /*threads=*/1);
  testbed::world = &world;
  testbed::process = &process;
  ::testing::InitGoogleTest(&argc, argv);
  return testbed::run_all_tests(world);
}
