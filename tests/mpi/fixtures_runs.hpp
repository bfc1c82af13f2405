// Fixture models in the legal splits of the world's ranks, for tests that run them on one kind of
// device: which splits there are, what each runs, and how its outcome is held to the reference.
#pragma once

#include <errno.h>  // program_invocation_short_name
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "parallel/comm/mpi_world.hpp"
#include "runtime/commands/run.hpp"
#include "runtime/config/model_readers.hpp"
#include "runtime/config/split.hpp"
#include "runtime/weights/safetensors_file.hpp"

namespace testbed::fixtures {

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
  ParallelConfig ways;  // all but the degrees
  std::string text() const {
    std::string text =
        fmt::format("tp {} pp {} cp {} dp {} ep {}", mesh.tp, mesh.pp, mesh.cp, mesh.dp, mesh.ep);
    if (ways.virtual_stages > 1) text += fmt::format(" v {}", ways.virtual_stages);
    if (ways.microbatches) text += fmt::format(" m {}", *ways.microbatches);
    if (mesh.cp > 1) text += fmt::format(" {}", cp_placement_name(ways.cp_placement));
    if (mesh.tp > 1) text += fmt::format(" {}", tp_comm_name(ways.tp_comm));
    if (ways.expert_exchange == ExpertExchange::all_to_all) text += " all-to-all";
    if (ways.expert_exchange == ExpertExchange::all_reduce) text += " experts all-reduce";
    return text;
  }
};

inline std::vector<int> divisors(int n) {
  std::vector<int> result;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) result.push_back(d);  // NOLINT(performance-inefficient-vector-operation)
  }
  return result;
}

inline std::vector<Mesh> meshes_of(int n_ranks, bool experts) {
  std::vector<Mesh> meshes;
  for (const int tp : divisors(n_ranks)) {
    for (const int pp : divisors(n_ranks / tp)) {
      for (const int cp : divisors(n_ranks / tp / pp)) {
        const int stage = n_ranks / pp;
        for (const int ep : experts ? divisors(stage) : std::vector<int>{1}) {
          meshes.push_back({.tp = tp, .cp = cp, .dp = stage / tp / cp, .pp = pp, .ep = ep});
        }
      }
    }
  }
  return meshes;
}

// The ways in which a mesh can work that compute the same.
inline std::vector<ParallelConfig> ways_of(const Mesh& mesh) {
  std::vector<ParallelConfig> ways{{}};
  const auto also = [&ways](bool applies, const auto& change) {
    if (!applies) return;
    std::vector<ParallelConfig> changed = ways;
    for (ParallelConfig& w : changed) change(w);
    ways.insert(ways.end(), changed.begin(), changed.end());
  };
  also(mesh.tp > 1, [](ParallelConfig& w) { w.tp_comm = TpComm::reduce_scatter; });
  also(mesh.cp > 1, [](ParallelConfig& w) { w.cp_placement = CpPlacement::contiguous; });
  also(mesh.ep > 1, [](ParallelConfig& w) { w.expert_exchange = ExpertExchange::all_to_all; });
  also(mesh.pp > 1, [](ParallelConfig& w) { w.microbatches = 1; });     // D7: fewer than stages
  also(mesh.pp == 2, [](ParallelConfig& w) { w.virtual_stages = 2; });  // interleaved
  return ways;
}

// One way a mesh, another one for the next mesh, so that all are seen; or all.
// What is run unless TESTBED_TEST_ALL asks for all.
struct Effort {
  int most_ranks_whole = 4;    // of more ranks every other mesh
  size_t most_cases = 1000;    // of a reference
  size_t every_nth_legal = 1;  // of those splits, one at least
};
inline bool runs_all() { return std::getenv("TESTBED_TEST_ALL") != nullptr; }

inline std::vector<Split> splits_of(int n_ranks, bool experts, size_t seed, const Effort& effort) {
  const bool all = runs_all();
  std::vector<Split> splits;
  size_t turn = seed;
  for (const Mesh& mesh : meshes_of(n_ranks, experts)) {
    const std::vector<ParallelConfig> ways = ways_of(mesh);
    const size_t chosen = turn / 2 % ways.size();
    const bool skipped = !all && n_ranks > effort.most_ranks_whole && turn % 2 == 1;
    ++turn;
    for (size_t i = 0; i < ways.size() && !skipped; ++i) {
      if (all || i == chosen) splits.push_back({mesh, ways[i]});
    }
  }
  return splits;
}

struct Reference {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> greedy;
};

inline Reference read_reference(const std::string& model, const Effort& effort = {}) {
  const TestFile file(models / model / "expected.safetensors");
  Reference reference;
  const auto taken = [&](int k) {
    return runs_all() || static_cast<size_t>(k) < effort.most_cases;
  };
  for (int k = 0; taken(k) && file.has(fmt::format("case{}.prompt_ids", k)); ++k) {
    reference.prompts.push_back(file.i32(fmt::format("case{}.prompt_ids", k)));
    reference.greedy.push_back(file.i32(fmt::format("case{}.greedy_ids", k)));
  }
  return reference;
}

inline RunConfig config_of(const std::string& model,
                           const Split& split,
                           const Reference& reference,
                           const fs::path& logits) {
  RunConfig config;
  config.model = (models / model).string();
  config.parallel = split.ways;
  config.parallel.tp = split.mesh.tp;
  config.parallel.pp = split.mesh.pp;
  config.parallel.cp = split.mesh.cp;
  config.parallel.dp = split.mesh.dp;
  config.parallel.ep = split.mesh.ep;
  config.kv_block_size = split.mesh.cp > 1 ? 3 : 16;  // so small that every cp rank has some
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

// Rows of the prompt and of all generated tokens but the last, layer by layer; how many there were.
inline int compare_routes(const std::string& model,
                          const Split& split,
                          const Reference& reference,
                          const TestFile& got,
                          const RunConfig& config) {
  const TestFile expected(models / model / "expected.safetensors");
  int n_rows = 0;
  int n_expected = 0;
  const ModelConfig shape = model_config_from_hf(models / model);
  for (size_t k = 0; k < config.workload.prompt_ids.size(); ++k) {
    const size_t c = k % reference.prompts.size();
    const size_t rows = reference.prompts[c].size() + reference.greedy[c].size() - 1;
    for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
      if (shape.layer(layer).has_experts) n_expected += static_cast<int>(rows);
      const std::string name = fmt::format("layer{}.router_ids", layer);
      if (!expected.has(fmt::format("case{}.{}", c, name))) continue;
      std::vector<int32_t> wanted = expected.i32(fmt::format("case{}.{}", c, name));
      const size_t top_k = wanted.size() / (rows + 1);
      wanted.resize(rows * top_k);
      EXPECT_EQ(got.i32(fmt::format("request{}.{}", k, name)), wanted)
          << model << " " << split.text() << " case " << c << " layer " << layer;
      n_rows += static_cast<int>(rows);
    }
  }
  EXPECT_EQ(n_rows, n_expected) << model << " " << split.text();
  return n_rows;
}

inline void compare(const std::string& model,
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
        const double difference = std::abs(double{a[i]} - double{b[i]});
        if (!(difference <= worst)) worst = difference;  // a NaN stays
      }
    }
  }
  EXPECT_LT(worst, tolerance) << model << " " << split.text();
  const int n_routed = compare_routes(model, split, reference, got, config);
  fmt::print("  {:<14} {:<54} max |logit - f64| {:.1e}{}\n",
             model,
             split.text(),
             worst,
             n_routed > 0 ? fmt::format(", experts of {} rows equal", n_routed) : "");
}

// Runs one configuration on this rank; the outcome on rank 0.
using Runner = std::function<std::optional<RunOutcome>(const RunConfig&, const RunInputs&)>;

// The ids of the timed passes, which went another way than those whose logits were kept.
inline void compare_timed(const std::string& model,
                          const Split& split,
                          const Reference& reference,
                          const RunRecord& record) {
  for (size_t k = 0; k < record.run.requests.size(); ++k) {
    EXPECT_EQ(record.run.requests[k].ids, reference.greedy[k % reference.greedy.size()])
        << model << " " << split.text() << " timed, request " << k;
  }
}

inline void run_split(MpiWorld& world,
                      const std::string& model,
                      const Split& split,
                      const Reference& reference,
                      const Runner& run_one) {
  const fs::path logits =
      fs::temp_directory_path() /
      fmt::format("{}-{}-{}.safetensors", program_invocation_short_name, model, world.size());
  const RunConfig run = config_of(model, split, reference, logits);
  const RunInputs inputs = open_inputs(run, split.mesh, *world.make_control());
  const std::optional<RunOutcome> outcome = run_one(run, inputs);
  if (world.rank() != 0) return;
  compare(model, split, reference, run);
  compare_timed(model, split, reference, outcome->record);
  fs::remove(logits);
}

inline void run_every_legal_split(MpiWorld& world,
                                  const std::string& model,
                                  const Effort& effort,
                                  const Runner& run_one) {
  const ModelConfig config = model_config_from_hf(models / model);
  const Reference reference = read_reference(model, effort);
  int n_run = 0;
  const size_t seed = std::hash<std::string>{}(model);
  std::vector<Split> legal;
  for (const Split& split : splits_of(world.size(), config.moe.has_value(), seed, effort)) {
    const auto reason = why_illegal(config, split.mesh, split.ways, 1);
    if (!reason) legal.push_back(split);  // NOLINT(performance-inefficient-vector-operation)
    if (reason && world.rank() == 0) fmt::print("  illegal: {}\n", *reason);
  }
  const size_t nth = runs_all() ? 1 : std::clamp<size_t>(legal.size(), 1, effort.every_nth_legal);
  for (size_t i = seed % nth; i < legal.size(); i += nth) {
    run_split(world, model, legal[i], reference, run_one);
    ++n_run;
  }
  EXPECT_GT(n_run + (world.size() == 3 ? 1 : 0), 0);  // some models have no split of three
}

inline std::vector<std::string> all_models() {
  return {"llama3_gqa",
          "llama_5layers",
          "llama_mha_f32",
          "mistral_swa",
          "qwen2",
          "qwen3",
          "smollm_tied",
          "gemma2",
          "gemma3",
          "gemma4_dense",
          "gemma4_moe",
          "mixtral",
          "qwen3_moe",
          "deepseek_v2",
          "deepseek_v3",
          "gpt_oss"};
}

}  // namespace testbed::fixtures
