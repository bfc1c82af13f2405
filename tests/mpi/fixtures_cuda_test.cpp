// All fixture models on --device cuda, on the emulation (tests/cuda_emulation): the splits and
// bounds of fixtures_test.cpp. The logits compared are of eager steps; the timed passes' decode
// steps are graphs from their third on, and must generate the same ids.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>

#include "launch/cuda/cuda_rank.hpp"
#include "tests/mpi/fixtures_runs.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

MpiWorld* world = nullptr;
CudaProcess* process = nullptr;

class FixturesOnCuda : public ::testing::TestWithParam<std::string> {};

// Emulated kernels are slow.
fixtures::Effort effort{.most_ranks_whole = 1, .most_cases = 2};

// A graph's collectives are captured on all ranks of a group, or on none.
void expect_same_graphs(const Device& device, const Mesh& mesh) {
  const std::map<std::string, std::string> facts = device.facts();
  const std::string mine = facts.at("graph_captures") + ", " + facts.at("graph_recaptures");
  const auto* begin = reinterpret_cast<const std::byte*>(mine.data());
  const std::vector<Bytes> all =
      world->make_control()->all_gather(Bytes(begin, begin + mine.size()));
  for (const int rank : mesh.group(world->rank(), Axis::tp)) {
    EXPECT_EQ(all[static_cast<size_t>(rank)], all[static_cast<size_t>(world->rank())])
        << "captures, recaptures: here " << mine << ", not so on rank " << rank;
  }
}

std::optional<RunOutcome> run_on_gpu(const RunConfig& config, const RunInputs& inputs) {
  RunConfig on_gpu = config;
  on_gpu.device = DeviceChoice::cuda;
  const CudaRank rank(*world, *process, on_gpu, inputs);
  std::optional<RunOutcome> outcome = run_rank(rank.context());
  expect_same_graphs(rank.context().device, rank.context().mesh);
  if (outcome) {
    const auto& options = outcome->record.run.options;
    const bool is_graph = options.at("decode_execution") == "graph";
    EXPECT_EQ(is_graph, !inputs.model.moe.has_value() && config.parallel.cp == 1);
    if (is_graph) {
      EXPECT_NE(options.at("graph_replays"), "0");
    }
  }
  return outcome;
}

TEST_P(FixturesOnCuda, every_legal_split_equals_the_reference) {
  fixtures::run_every_legal_split(*world, GetParam(), effort, &run_on_gpu);
}

// Of one row, scattered over two ranks, one rank holds nothing: it sends no activations from stage
// to stage, yet captures its decode steps when its peer does.
TEST(FixturesOnCudaOfFourRanks, a_rank_without_rows_captures_with_its_peer) {
  if (world->size() != 4) GTEST_SKIP() << "of four ranks";
  const std::string model = "llama3_gqa";
  const fixtures::Split split{.mesh = {.tp = 2, .pp = 2},
                              .ways = {.tp_comm = TpComm::reduce_scatter}};
  fixtures::Reference reference = fixtures::read_reference(model);
  reference.prompts.resize(1);
  reference.greedy.resize(1);
  fixtures::run_split(*world, model, split, reference, &run_on_gpu);
}

// bf16 moves the logits of dense models by 0.2 to 0.9 (the fixtures' README); what it does to those
// of models with experts has no bound, as it chooses other experts.
constexpr double bf16_moves = 0.9;

// The steps whose largest logit leads by more than two values can move must choose it; where one
// does not lead by so much, the rest of the case may be another text.
struct Bf16Comparison {
  int n_led = 0;
  double worst = 0.0;
};
Bf16Comparison compare_bf16(const std::string& model,
                            const fixtures::Reference& reference,
                            const RunConfig& config) {
  const fixtures::TestFile got(*config.output.logits);
  const fixtures::TestFile expected(fixtures::models / model / "expected_f64.safetensors");
  Bf16Comparison comparison;
  for (size_t c = 0; c < reference.greedy.size(); ++c) {
    const auto a = got.f32(fmt::format("request{}.prompt_logits", c));
    const auto b = expected.f32(fmt::format("case{}.prompt_logits", c));
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      const double moved = std::abs(double{a[i]} - double{b[i]});
      if (!(moved <= comparison.worst)) comparison.worst = moved;
    }
    const std::vector<int32_t> ids = got.i32(fmt::format("request{}.greedy_ids", c));
    const auto logits = expected.f32(fmt::format("case{}.greedy_logits", c));
    const size_t vocab = logits.size() / reference.greedy[c].size();
    for (size_t step = 0; step < ids.size(); ++step) {
      std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(step * vocab),
                             logits.begin() + static_cast<std::ptrdiff_t>((step + 1) * vocab));
      std::partial_sort(row.begin(), row.begin() + 2, row.end(), std::greater<>());
      const bool leads = row[0] - row[1] > 2 * bf16_moves;
      if (leads) {
        EXPECT_EQ(ids[step], reference.greedy[c][step]) << model << " case " << c << " " << step;
        ++comparison.n_led;
      }
      if (ids[step] != reference.greedy[c][step]) break;
    }
  }
  return comparison;
}

TEST_P(FixturesOnCuda, bf16_chooses_what_leads) {
  const std::string model = GetParam();
  // One rank takes all models; of several ranks two take one half, four the other.
  const bool is_of_four = std::hash<std::string>{}(model) % 2 == 0;
  if (!fixtures::runs_all() && world->size() > 1 && is_of_four != (world->size() == 4)) {
    GTEST_SKIP() << "runs at another number of ranks";
  }
  const ModelConfig shape = model_config_from_hf(fixtures::models / model);
  const fixtures::Reference reference = fixtures::read_reference(model, effort);
  const auto logits = fixtures::fs::temp_directory_path() /
                      fmt::format("testbed-bf16-{}-{}.safetensors", model, world->size());
  for (const fixtures::Split& split :
       fixtures::splits_of(world->size(), shape.moe.has_value(), 0, effort)) {
    if (why_illegal(shape, split.mesh, split.ways, 1)) continue;
    RunConfig run = fixtures::config_of(model, split, reference, logits);
    run.device = DeviceChoice::cuda;
    run.compute_dtype = DType::BF16;
    const RunInputs inputs = open_inputs(run, split.mesh, *world->make_control());
    const CudaRank rank(*world, *process, run, inputs);
    run_rank(rank.context());
    if (world->rank() != 0) break;
    const Bf16Comparison comparison = compare_bf16(model, reference, run);
    if (!shape.moe) {
      EXPECT_LT(comparison.worst, bf16_moves) << model << " " << split.text();
    }
    fmt::print("  {:<14} {:<54} bf16: moved {:.2f}, {} leading tokens equal\n",
               model,
               split.text(),
               comparison.worst,
               comparison.n_led);
    break;  // one split a model: f32 went through all
  }
  if (world->rank() == 0) fixtures::fs::remove(logits);
}

INSTANTIATE_TEST_SUITE_P(Models, FixturesOnCuda, ::testing::ValuesIn(fixtures::all_models()));

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  testbed::MpiWorld world;
  ::testing::InitGoogleTest(&argc, argv);
  // tests/gpu.sh: the same on real GPUs, several ranks on one if it has to be.
  const bool may_share = std::getenv("TESTBED_ALLOW_SHARED_GPU") != nullptr;
  testbed::CudaProcess process(world, *world.make_control(), {.allow_shared_gpu = may_share});
  testbed::world = &world;
  testbed::process = &process;
  if (world.size() > 1) testbed::effort.every_nth_legal = 2;
  if (world.size() > 2) {
    testbed::effort.every_nth_legal = 3;
    testbed::effort.most_cases = 1;
  }
  return testbed::run_all_tests(world);
}
