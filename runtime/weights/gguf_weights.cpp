// GGUF files as a WeightSource: Hugging Face names mapped to GGUF names, llama's row order undone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/weights/checkpoint_names.hpp"
#include "runtime/weights/file_weights.hpp"
#include "runtime/weights/ggml_type.hpp"
#include "runtime/weights/gguf_file.hpp"

namespace testbed {
namespace {

constexpr std::string_view rope_factors_name = "rope_freqs.weight";

// Hugging Face module of a layer, and its GGUF name after "blk.N.".
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> layer_modules{{
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.o_proj", "attn_output"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
}};

std::string gguf_layer_name(int64_t layer, std::string_view module, std::string_view leaf) {
  for (const auto& [hf, gguf] : layer_modules)
    if (hf == module) return fmt::format("blk.{}.{}.{}", layer, gguf, leaf);
  check_failed("known module", __FILE__, __LINE__);
}

std::string gguf_top_name(const std::string& name) {
  if (name == embedding_name) return "token_embd.weight";
  if (name == final_norm_name) return "output_norm.weight";
  CHECK(name == head_name);
  return "output.weight";
}

std::shared_ptr<const MappedTensor> mapped(const GgufTensor& tensor) {
  const GgmlTypeInfo* info = find_ggml_type(tensor.ggml_type);
  CHECK(info != nullptr);  // the parser has refused unknown types
  const std::vector<int64_t> shape(tensor.dims.rbegin(), tensor.dims.rend());
  return std::make_shared<MappedTensor>(MappedTensor{
      tensor.name, tensor.file, std::string(info->name), info->dtype, shape, tensor.data});
}

// Whether the rows of q and k lie in the order that interleaved rotary embedding wants. Known for
// these architectures only (Mistral models are stored as llama); a guess would change the answer.
bool rows_are_permuted(const GgufFile& file) {
  const std::string arch = file.get_string("general.architecture");
  if (arch == "llama") return true;
  if (arch == "qwen2" || arch == "qwen3") return false;
  throw WeightsError(
      fmt::format("{}: general.architecture '{}' is not supported; supported: llama, qwen2, qwen3",
                  file.name(),
                  arch));
}

class GgufLocator {
 public:
  GgufLocator(const GgufFile& file, const ModelConfig& config)
      : file_(file), config_(config), permuted_(rows_are_permuted(file)) {
    if (permuted_ && config.head_dim % 2 != 0)
      throw WeightsError(
          fmt::format("{}: llama with an odd head size {}", file.name(), config.head_dim));
  }

  std::optional<StoredPart> operator()(const TensorSpec& spec) const {
    const auto parsed = split_layer_name(spec.name, "model.layers.");
    if (!parsed) return whole(gguf_top_name(spec.name), spec);
    auto part = is_fused_up(*parsed)
                    ? std::nullopt
                    : whole(gguf_layer_name(parsed->layer, parsed->module, parsed->leaf), spec);
    if (!part) part = fused(*parsed, spec);
    const bool q_or_k =
        parsed->module == "self_attn.q_proj" || parsed->module == "self_attn.k_proj";
    if (part && q_or_k && permuted_) part->permuted_head_dim = config_.head_dim;
    return part;
  }

 private:
  std::optional<StoredPart> whole(const std::string& name, const TensorSpec& spec) const {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) return std::nullopt;
    return StoredPart{mapped(*tensor), whole_place(name, spec)};
  }

  // ffn_up holds gate and up if there is no ffn_gate.
  bool is_fused_up(const LayerTensorName& name) const {
    return name.module == "mlp.up_proj" &&
           file_.find_tensor(gguf_layer_name(name.layer, "mlp.gate_proj", name.leaf)) == nullptr;
  }

  std::optional<StoredPart> fused(const LayerTensorName& name, const TensorSpec& spec) const {
    const auto rows = fused_part(config_, name);
    if (!rows) return std::nullopt;
    const std::string stored = gguf_layer_name(name.layer, rows->fused_module, name.leaf);
    const GgufTensor* tensor = file_.find_tensor(stored);
    if (tensor == nullptr) return std::nullopt;
    StoredPart part{mapped(*tensor), fused_place(stored, *rows, spec)};
    // With rows for one of gate and up only, it is the other tensor that is missing.
    if (name.module == "mlp.gate_proj" && !part.tensor->shape.empty() &&
        part.tensor->shape[0] == config_.d_ff)
      return std::nullopt;
    return part;
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  bool permuted_;
};

// Divisor of frequency i of `llama3` rope scaling, as Hugging Face's
// _compute_llama3_parameters gives it.
double llama3_divisor(const RopeConfig& rope, int64_t head_dim, int64_t i) {
  const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
  const double wavelength = 2.0 * std::numbers::pi * std::pow(rope.theta, exponent);
  const double turns = static_cast<double>(rope.original_max_positions) / wavelength;
  if (turns > rope.high_freq_factor) return 1.0;
  if (turns < rope.low_freq_factor) return rope.factor;
  const double smooth =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return 1.0 / ((1.0 - smooth) / rope.factor + smooth);
}

// GGUF stores llama3's rope scaling as a tensor of divisors, not as metadata. The model computes
// its frequencies from the config, so a table that the config does not reproduce is refused.
void check_rope_factors(const GgufFile& file, const ModelConfig& config) {
  const GgufTensor* tensor = file.find_tensor(rope_factors_name);
  if (tensor == nullptr) return;
  const std::string what = fmt::format("{}: tensor '{}'", tensor->file, tensor->name);
  if (tensor->dims != std::vector<int64_t>{config.head_dim / 2} || tensor->ggml_type != 0)
    throw WeightsError(fmt::format("{} must be F32 [{}]", what, config.head_dim / 2));
  for (int64_t i = 0; i < config.head_dim / 2; ++i) {
    float found = 0;
    std::memcpy(&found, tensor->data.data() + i * 4, sizeof(found));
    const double expected = config.rope.kind == RopeKind::llama3
                                ? llama3_divisor(config.rope, config.head_dim, i)
                                : 1.0;
    // The table is f32 of a computation in f32; frequencies near a threshold amplify its rounding.
    if (!(std::abs(static_cast<double>(found) - expected) <= 1e-4 * expected))
      throw WeightsError(fmt::format(
          "{}: rope divisor {} is {}, the configuration gives {}: its rope scaling is another",
          what,
          i,
          found,
          expected));
  }
}

}  // namespace

std::unique_ptr<WeightSource> open_gguf(const std::filesystem::path& path,
                                        const ModelConfig& config) {
  const auto file = std::make_shared<const GgufFile>(GgufFile::open(path));
  if (file->tensors().empty())
    throw WeightsError(fmt::format("{}: holds no tensors, only metadata", path.string()));
  auto weights =
      std::make_unique<FileWeights>(path.string(), config, GgufLocator(*file, config), file);
  std::vector<FileWeights::Named> stored;
  for (const GgufTensor& tensor : file->tensors()) {
    if (tensor.name == rope_factors_name) continue;
    const auto parsed = split_layer_name(tensor.name, "blk.");
    stored.push_back(
        {tensor.name, tensor.file, parsed ? std::optional(parsed->layer) : std::nullopt});
  }
  weights->refuse_unused(stored, config.n_layers);
  check_rope_factors(*file, config);
  return weights;
}

}  // namespace testbed
