// All fixture models in every legal tp x pp x dp split of this many ranks, through run_rank: f32
// logits within 2e-4 of the f64 reference at prompt and decode, and equal greedy ids. Prints which
// splits ran and why the others are illegal.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "launch/cpu_rank.hpp"
#include "runtime/commands/run.hpp"
#include "runtime/config/model_readers.hpp"
#include "runtime/config/split.hpp"
#include "runtime/weights/safetensors_file.hpp"

namespace testbed {
namespace {

namespace fs = std::filesystem;

const fs::path models = fs::path(TESTBED_SOURCE_DIR) / "tests/fixtures/models";
constexpr double tolerance = 2e-4;  // f32 against f64, from the fixtures' README

// Tensors of a reference file as vectors.
class TestFile {
 public:
  explicit TestFile(const fs::path& path) : file_(SafetensorsFile::open(path)) {}
  bool has(const std::string& name) const { return file_.tensors().contains(name); }
  std::vector<int32_t> i32(const std::string& name) const { return values<int32_t>(name, "I32"); }
  std::vector<float> f32(const std::string& name) const { return values<float>(name, "F32"); }

 private:
  template <typename T>
  std::vector<T> values(const std::string& name, const char* dtype) const {
    const SafetensorsTensor& tensor = file_.tensors().find(name)->second;
    CHECK(tensor.dtype == dtype);
    std::vector<T> out(tensor.data.size() / sizeof(T));
    std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
    return out;
  }
  SafetensorsFile file_;
};

struct Split {
  Mesh mesh;
  int virtual_stages = 1;
  std::optional<int> microbatches;
  std::string text() const {
    return fmt::format("tp {} pp {} dp {} v {} m {}",
                       mesh.tp,
                       mesh.pp,
                       mesh.dp,
                       virtual_stages,
                       microbatches ? std::to_string(*microbatches) : "-");
  }
};

std::vector<Split> splits_of(int n_ranks) {
  std::vector<Split> splits;
  for (int tp = 1; tp <= n_ranks; ++tp) {
    for (int pp = 1; tp * pp <= n_ranks; ++pp) {
      if (n_ranks % (tp * pp) != 0) continue;
      const Mesh mesh{.tp = tp, .dp = n_ranks / (tp * pp), .pp = pp};
      splits.push_back({mesh});
      if (pp == 2) splits.push_back({mesh, 2});    // interleaved
      if (pp > 1) splits.push_back({mesh, 1, 1});  // D7: fewer microbatches than stages
    }
  }
  return splits;
}

struct Reference {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> greedy;
};

Reference read_reference(const std::string& model) {
  const TestFile file(models / model / "expected.safetensors");
  Reference reference;
  for (int k = 0; file.has(fmt::format("case{}.prompt_ids", k)); ++k) {
    reference.prompts.push_back(file.i32(fmt::format("case{}.prompt_ids", k)));
    reference.greedy.push_back(file.i32(fmt::format("case{}.greedy_ids", k)));
  }
  return reference;
}

RunConfig config_of(const std::string& model,
                    const Split& split,
                    const Reference& reference,
                    const fs::path& logits) {
  RunConfig config;
  config.model = (models / model).string();
  config.parallel = {.tp = split.mesh.tp,
                     .pp = split.mesh.pp,
                     .dp = split.mesh.dp,
                     .microbatches = split.microbatches,
                     .virtual_stages = split.virtual_stages};
  config.compute_dtype = DType::F32;
  config.sampling.ignore_eos = true;
  config.workload.gen_tokens = static_cast<int64_t>(reference.greedy.front().size());
  // At least one request per replica: cases are repeated.
  const size_t n_requests = std::max(reference.prompts.size(), static_cast<size_t>(split.mesh.dp));
  for (size_t k = 0; k < n_requests; ++k) {
    config.workload.prompt_ids.push_back(reference.prompts[k % reference.prompts.size()]);
  }
  config.warmup = 0;
  config.repeats = 1;
  config.check = CheckMode::off;  // this is the check
  config.output.quiet = true;
  config.output.logits = logits.string();
  config.timeout_s = 60;
  return config;
}

void compare(const std::string& model,
             const Split& split,
             const Reference& reference,
             const RunConfig& config) {
  const TestFile got(*config.output.logits);
  const TestFile expected(models / model / "expected_f64.safetensors");
  double worst = 0.0;
  for (size_t k = 0; k < config.workload.prompt_ids.size(); ++k) {
    const size_t c = k % reference.prompts.size();
    EXPECT_EQ(got.i32(fmt::format("request{}.greedy_ids", k)), reference.greedy[c])
        << model << " " << split.text() << " case " << c;
    for (const char* kind : {"prompt_logits", "greedy_logits"}) {
      const std::vector<float> a = got.f32(fmt::format("request{}.{}", k, kind));
      const std::vector<float> b = expected.f32(fmt::format("case{}.{}", c, kind));
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
      }
    }
  }
  EXPECT_LT(worst, tolerance) << model << " " << split.text();
  fmt::print("  {:<16} {:<24} max |logit - f64| {:.1e}\n", model, split.text(), worst);
}

MpiWorld* world = nullptr;
CpuProcess* process = nullptr;

class Fixtures : public ::testing::TestWithParam<std::string> {};

TEST_P(Fixtures, every_legal_split_equals_the_reference) {
  const std::string model = GetParam();
  const ModelConfig config = model_config_from_hf(models / model);
  const Reference reference = read_reference(model);
  const fs::path logits =
      fs::temp_directory_path() / fmt::format("testbed-{}-{}.safetensors", model, world->size());
  int n_run = 0;
  for (const Split& split : splits_of(world->size())) {
    const ParallelConfig parallel{.microbatches = split.microbatches,
                                  .virtual_stages = split.virtual_stages};
    if (const auto reason = why_illegal(config, split.mesh, parallel, 1)) {
      if (world->rank() == 0) fmt::print("  illegal: {}\n", *reason);
      continue;
    }
    const RunConfig run = config_of(model, split, reference, logits);
    const std::unique_ptr<ControlChannel> control = world->make_control();
    const RunInputs inputs = open_inputs(run, split.mesh, *control);
    const CpuRank rank(*world, *process, run, inputs);
    run_rank(rank.context());
    ++n_run;
    if (world->rank() == 0) compare(model, split, reference, run);
  }
  if (world->rank() == 0) fs::remove(logits);
  EXPECT_GT(n_run + (world->size() == 3 ? 1 : 0), 0);  // some models have no split of three
}

std::vector<std::string> fixture_models() {
  return {"llama3_gqa",
          "llama_5layers",
          "llama_mha_f32",
          "mistral_swa",
          "qwen2",
          "qwen3",
          "smollm_tied"};
}
INSTANTIATE_TEST_SUITE_P(Models, Fixtures, ::testing::ValuesIn(fixture_models()));

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  testbed::MpiWorld world;
  testbed::CpuProcess process(world, std::nullopt);
  testbed::world = &world;
  testbed::process = &process;
  ::testing::InitGoogleTest(&argc, argv);
  if (world.rank() != 0) {
    // One rank prints; a failure elsewhere still makes this rank's exit code non-zero.
    delete ::testing::UnitTest::GetInstance()->listeners().Release(
        ::testing::UnitTest::GetInstance()->listeners().default_result_printer());
  }
  try {
    return RUN_ALL_TESTS();
  } catch (const std::exception& e) {
    fmt::print(stderr, "rank {}: {}\n", world.rank(), e.what());
    world.abort(1);
  }
}
