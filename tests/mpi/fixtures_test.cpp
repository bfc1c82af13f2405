// All fixture models in the legal splits of this many ranks over tp x pp x cp x dp, with ep,
// through run_rank: f32 logits within 2e-4 of the f64 reference at prompt and decode, equal greedy
// ids and the reference's choice of experts. Prints which splits ran and why the others are
// illegal. By default every mesh runs in one of the ways to work together (of more than 4 ranks
// every other mesh for each model, the other half for the next; of 8, and sanitized, half of those
// that are legal); with TESTBED_TEST_ALL set all meshes in all ways.
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

INSTANTIATE_TEST_SUITE_P(Models, Fixtures, ::testing::ValuesIn(fixtures::all_models()));

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  return testbed::fixtures::run_cpu_rank_tests(argc, argv, testbed::world, testbed::process);
}
