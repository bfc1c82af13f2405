// All fixture models in the legal splits of this many ranks over tp x pp x cp x dp, with ep,
// through run_rank: f32 logits within 2e-4 of the f64 reference at prompt and decode, equal greedy
// ids and the reference's choice of experts. Prints which splits ran and why the others are
// illegal. By default every mesh runs in one of the ways to work together (of more than 4 ranks
// every other mesh for each model, the other half for the next; of 8, and sanitized, half of those
// that are legal); with TESTBED_TEST_ALL set all meshes in all ways.
#include <cstdlib>

#include "parallel/comm/shm_communicator.hpp"
#include "tests/mpi/cpu_rank_tests.hpp"
#include "tests/trials.hpp"

namespace testbed {
namespace {

MpiWorld* world = nullptr;
CpuProcess* process = nullptr;

class Fixtures : public ::testing::TestWithParam<std::string> {};

TEST_P(Fixtures, every_legal_split_equals_the_reference) {
  const bool halves = is_sanitized || world->size() > 6;
  const fixtures::Effort effort{.every_nth_legal = halves ? size_t{2} : size_t{1}};
  fixtures::run_every_legal_split(
      *world, GetParam(), effort, [](const RunConfig& config, const RunInputs& inputs) {
        const CpuRank rank(*world, *process, config, inputs);
        return run_rank(rank.context());
      });
}

// All of a run's all-reduces over tp, two in each layer of each step: its workspace is shared.
TEST(AllReduces, of_a_run_are_taken_where_the_partial_sums_lie) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs groups of 2";
  const fixtures::Reference reference = fixtures::read_reference("llama3_gqa", {.most_cases = 1});
  const fixtures::Split split{{.tp = 2, .dp = world->size() / 2}, {}};
  RunConfig config = fixtures::config_of("llama3_gqa", split, reference, "");
  config.output.logits.reset();
  const RunInputs inputs = open_inputs(config, split.mesh, *world->make_control());
  setenv("TESTBED_ONE_SHOT_BYTES", "0", 1);  // all by two-shot
  const CpuRank rank(*world, *process, config, inputs);
  unsetenv("TESTBED_ONE_SHOT_BYTES");
  const auto* const tp = dynamic_cast<const ShmCommunicator*>(&rank.context().groups.tp);
  ASSERT_NE(tp, nullptr);
  EXPECT_EQ(tp->n_in_place(), 0);
  run_rank(rank.context());
  EXPECT_GE(tp->n_in_place(), 2 * inputs.model.n_layers * config.workload.gen_tokens);
}

INSTANTIATE_TEST_SUITE_P(Models, Fixtures, ::testing::ValuesIn(fixtures::all_models()));

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  return testbed::fixtures::run_cpu_rank_tests(argc, argv, testbed::world, testbed::process);
}
