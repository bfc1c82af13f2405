// Quantised weights through run_rank: logits within 2e-4 of a run on the dequantised weights in
// f32, and the same tokens, in every format, over all ranks; with bf16 activations within what
// their rounding moves.
#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "runtime/model/model.hpp"
#include "runtime/weights/tensor_names.hpp"
#include "tests/mpi/cpu_rank_tests.hpp"

namespace testbed {
namespace {

namespace fs = std::filesystem;

MpiWorld* world = nullptr;
CpuProcess* process = nullptr;

// nullopt: not quantised.
std::optional<WeightFormat> format_of(const std::string& tensor, const WeightFormat& of_layers) {
  if (tensor.ends_with("mlp.gate.weight") || tensor.ends_with("kv_b_proj.weight")) return {};
  const bool is_table = tensor == embedding_name || tensor == head_name;
  return is_table ? table_format(of_layers) : of_layers;
}

// Another source's weights as they are after quantising: each tensor quantised as a whole, and
// expanded.
class DequantisedWeights : public WeightSource {
 public:
  DequantisedWeights(std::unique_ptr<WeightSource> source,
                     const ModelConfig& model,
                     const WeightFormat& of_layers)
      : source_(std::move(source)) {
    for (const TensorSpec& spec : required_tensors(model)) {
      const std::optional<WeightFormat> format = format_of(spec.name, of_layers);
      if (spec.kind != TensorKind::matrix || !format) continue;
      Tensor values(DType::F32, spec.shape);
      source_->read(spec.name, {0, spec.shape[0]}, {0, spec.shape[1]}, values);
      const QuantisedTensor codes(*format, spec.shape[0], spec.shape[1]);
      quantise(values, codes, largest_magnitude(values));
      dequantise(codes, values);
      matrices_.emplace(spec.name, std::move(values));
    }
  }
  std::optional<StoredTensor> find(std::string_view name) const override {
    auto found = source_->find(name);
    if (found) found->dtype = DType::F32;
    return found;
  }
  void read(std::string_view name,
            IndexRange rows,
            IndexRange cols,
            TensorView dst) const override {
    const auto at = matrices_.find(name);
    if (at == matrices_.end()) return source_->read(name, rows, cols, dst);
    CHECK(dst.dtype() == DType::F32);
    const int64_t n_cols = at->second.shape()[1];
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      std::copy_n(at->second.as<float>() + row * n_cols + cols.begin,
                  cols.size(),
                  dst.as<float>() + (row - rows.begin) * cols.size());
    }
  }
  void read_blocks(std::string_view, IndexRange, IndexRange, const QuantisedRows&) const override {
    check_failed("stored in blocks", __FILE__, __LINE__);
  }
  std::string description() const override { return "dequantised " + source_->description(); }

 private:
  std::unique_ptr<WeightSource> source_;
  std::map<std::string, Tensor, std::less<>> matrices_;
};

struct Outcome {
  std::vector<std::vector<int32_t>> ids;
  std::vector<float> logits;  // of all prompts, then of all generated tokens
  std::vector<std::string> labels;
  std::string weight_dtype;
};

fs::path logits_path() {
  return fs::temp_directory_path() / fmt::format("testbed-quantised-{}.safetensors", world->size());
}

// On rank 0. dequantise_first: on the dequantised weights instead.
Outcome run(const std::string& model,
            int tp,
            DType compute,
            const WeightFormat& format,
            bool dequantise_first) {
  const fixtures::Reference reference = fixtures::read_reference(model, {.most_cases = 1});
  const fixtures::Split split{{.tp = tp, .dp = world->size() / tp}, {}};
  RunConfig config = fixtures::config_of(model, split, reference, logits_path());
  config.workload.gen_tokens = 4;
  config.compute_dtype = compute;
  if (!dequantise_first) config.weight_format = format;
  RunInputs inputs = open_inputs(config, split.mesh, *world->make_control());
  if (dequantise_first) {
    inputs.source =
        std::make_unique<DequantisedWeights>(std::move(inputs.source), inputs.model, format);
  }
  const CpuRank rank(*world, *process, config, inputs);
  const std::optional<RunOutcome> done = run_rank(rank.context());
  if (world->rank() != 0) return {};
  Outcome outcome{.ids = {},
                  .logits = {},
                  .labels = done->record.run.labels,
                  .weight_dtype = done->record.run.weight_dtype};
  const fixtures::TestFile file(logits_path());
  for (size_t k = 0; k < config.workload.prompt_ids.size(); ++k) {
    outcome.ids.push_back(file.i32(fmt::format("request{}.greedy_ids", k)));
    for (const char* kind : {"prompt_logits", "greedy_logits"}) {
      for (const float x : file.f32(fmt::format("request{}.{}", k, kind))) {
        outcome.logits.push_back(x);
      }
    }
  }
  fs::remove(logits_path());
  return outcome;
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  EXPECT_FALSE(a.empty());
  double worst = 0.0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (!(difference <= worst)) worst = difference;  // a NaN stays
  }
  return worst;
}

bool is_legal(const std::string& model, int tp, const WeightFormat& format) {
  const ModelConfig config = model_config_from_hf(fixtures::models / model);
  return !why_illegal_tp(config, tp, format.col_granularity());
}

// Each format's turn: one model of those that can be split over all ranks, with TESTBED_TEST_ALL
// all.
std::vector<std::string> models_for(size_t turn, const WeightFormat& format) {
  static const std::array models{"llama3_gqa", "qwen2", "mixtral", "deepseek_v3"};
  std::vector<std::string> legal;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::string model = models.at((turn + i) % models.size());
    if (!is_legal(model, world->size(), format)) continue;
    legal.push_back(model);  // NOLINT(performance-inefficient-vector-operation)
    if (!fixtures::runs_all()) break;
  }
  return legal;
}

TEST(Quantised, equals_a_run_on_the_dequantised_weights_in_f32) {
  // Other pairs of model and format on other numbers of ranks.
  auto turn = static_cast<size_t>(world->size());
  int n_run = 0;
  for (const auto& [name, format] : std::span(weight_formats::quantised).first<8>()) {
    for (const std::string& model : models_for(turn++, format)) {
      SCOPED_TRACE(fmt::format("{} {}", model, name));
      ++n_run;
      const Outcome expected = run(model, world->size(), DType::F32, format, true);
      const Outcome got = run(model, world->size(), DType::F32, format, false);
      if (world->rank() != 0) continue;
      EXPECT_EQ(got.ids, expected.ids);
      // Both sum in f32, in orders of their own: as f32 against the fixtures' f64.
      EXPECT_LT(max_difference(got.logits, expected.logits), fixtures::tolerance);
      EXPECT_EQ(got.weight_dtype, std::string(name.substr(0, name.find('-'))));
    }
  }
  EXPECT_GE(n_run, 5);  // those of groups of 128 columns cannot be split over 4 ranks
}

// An activation's code is off by at most max|x| / 254 in its group of 32, uniformly: 2.3e-3 of the
// largest, some 5e-3 of the rms of normal ones, of which bf16's rounding (2^-9 / sqrt 3) is a
// quarter; and bf16 rounds what lies between the products, too. So 8 times what bf16 itself moves.
TEST(QuantisedBf16, moves_no_more_than_the_rounding_of_activations) {
  const std::string model = "llama3_gqa";
  using namespace weight_formats;
  for (const WeightFormat& format : {int8_g32, int4_g32, fp8_row}) {
    const int tp = world->size();
    if (!is_legal(model, tp, format)) continue;
    const Outcome exact = run(model, tp, DType::F32, format, true);
    const Outcome rounded = run(model, tp, DType::BF16, format, true);
    const Outcome got = run(model, tp, DType::BF16, format, false);
    if (world->rank() != 0) continue;
    const double moved = max_difference(rounded.logits, exact.logits);
    EXPECT_GT(moved, 0.0);
    EXPECT_LT(max_difference(got.logits, exact.logits), 8.0 * moved) << format_name(format);
    const bool fp8 = format.coding == WeightCoding::fp8;
    const std::string label = fmt::format(
        "{} weights: activations quantised to int8 in groups of 32", weight_dtype_name(format));
    EXPECT_EQ(std::count(got.labels.begin(), got.labels.end(), label), fp8 ? 0 : 1);
  }
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  return testbed::fixtures::run_cpu_rank_tests(argc, argv, testbed::world, testbed::process);
}
