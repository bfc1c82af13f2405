// ModelConfig from GGUF metadata. Keys: docs/gguf.md of ggml, and convert_hf_to_gguf.py of
// llama.cpp for the rope keys.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "kernels/base/errors.hpp"
#include "runtime/config/model_readers.hpp"
#include "runtime/config/rope.hpp"
#include "runtime/config/text_input.hpp"
#include "runtime/weights/ggml_type.hpp"
#include "runtime/weights/gguf_file.hpp"

namespace testbed {
namespace {

class GgufReader {
 public:
  explicit GgufReader(const GgufFile& file) : file_(file) {}
  ModelConfig read();

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(fmt::format("{}: {}", file_.name(), what));
  }
  bool has_tensor(std::string_view name) const { return file_.find_tensor(name) != nullptr; }

  std::string read_architecture() const;
  std::optional<int64_t> find_uniform(std::string_view name, int64_t n_layers) const;
  int64_t get_uniform(std::string_view name, int64_t n_layers) const;
  void read_sizes(ModelConfig& model) const;
  void read_head_dim(ModelConfig& model) const;
  int64_t read_vocab_size() const;
  RopeConfig read_rope(const ModelConfig& model) const;
  void read_scaling(const ModelConfig& model, RopeConfig& rope) const;
  void read_frequency_factors(const ModelConfig& model, RopeConfig& rope) const;
  void read_windows(ModelConfig& model) const;
  void read_special_ids(ModelConfig& model) const;
  DType most_common_dtype() const;
  void refuse_unsupported() const;

  const GgufFile& file_;
  std::string arch_;
};

std::string GgufReader::read_architecture() const {
  std::string arch = file_.get_string("general.architecture");
  constexpr std::array<std::string_view, 4> supported{"llama", "qwen2", "qwen3", "mistral"};
  if (std::find(supported.begin(), supported.end(), arch) == supported.end())
    fail(fmt::format(
        "general.architecture {} is not supported; supported: llama, qwen2, qwen3, mistral",
        in_quotes(arch)));
  return arch;
}

// A number, or one per layer: honoured if all are equal (D16).
std::optional<int64_t> GgufReader::find_uniform(std::string_view name, int64_t n_layers) const {
  const std::string full = key(name);
  if (!file_.is_array(full)) return file_.find_int(full);
  const std::vector<int64_t> values = file_.get_ints(full);
  if (static_cast<int64_t>(values.size()) != n_layers)
    fail(fmt::format("{} has {} values for {} layers", full, values.size(), n_layers));
  for (const int64_t value : values)
    if (value != values.front())
      fail(fmt::format(
          "{} differs from layer to layer ({} and {}), which is not supported; all must be equal",
          full,
          values.front(),
          value));
  return values.front();
}

int64_t GgufReader::get_uniform(std::string_view name, int64_t n_layers) const {
  const auto value = find_uniform(name, n_layers);
  if (!value) fail(fmt::format("{} is missing", key(name)));
  return *value;
}

void GgufReader::read_sizes(ModelConfig& model) const {
  constexpr int64_t max_layers = 1 << 14;
  model.n_layers = file_.get_int(key("block_count"));
  if (model.n_layers < 1 || model.n_layers > max_layers)
    fail(fmt::format("{} is {}; expected 1 to {}", key("block_count"), model.n_layers, max_layers));
  model.d_model = file_.get_int(key("embedding_length"));
  model.d_ff = get_uniform("feed_forward_length", model.n_layers);
  model.n_heads = get_uniform("attention.head_count", model.n_layers);
  model.n_kv_heads =
      find_uniform("attention.head_count_kv", model.n_layers).value_or(model.n_heads);
  model.max_positions = file_.get_int(key("context_length"));
  model.norm_eps = file_.get_float(key("attention.layer_norm_rms_epsilon"));
  model.vocab_size = read_vocab_size();
  read_head_dim(model);
}

void GgufReader::read_head_dim(ModelConfig& model) const {
  const auto key_length = file_.find_int(key("attention.key_length"));
  if (key_length) {
    model.head_dim = *key_length;
  } else {
    if (model.n_heads < 1 || model.d_model % model.n_heads != 0)
      fail(fmt::format("{} is missing, and {} does not divide by {} heads",
                       key("attention.key_length"),
                       model.d_model,
                       model.n_heads));
    model.head_dim = model.d_model / model.n_heads;
  }
  const int64_t value_length =
      file_.find_int(key("attention.value_length")).value_or(model.head_dim);
  if (value_length != model.head_dim)
    fail(fmt::format("{} is {}, which must equal the key length {}",
                     key("attention.value_length"),
                     value_length,
                     model.head_dim));
  const int64_t rotated = file_.find_int(key("rope.dimension_count")).value_or(model.head_dim);
  if (rotated != model.head_dim)
    fail(fmt::format("{} is {}, but partial rotation of head_dim {} is not supported",
                     key("rope.dimension_count"),
                     rotated,
                     model.head_dim));
}

// The rows of the embedding; what the metadata says must agree.
int64_t GgufReader::read_vocab_size() const {
  const GgufTensor* table = file_.find_tensor("token_embd.weight");
  if (table == nullptr) fail("tensor token_embd.weight is missing");
  if (table->dims.size() != 2) fail("tensor token_embd.weight must have two dimensions");
  const int64_t n_rows = table->dims[1];
  if (const auto size = file_.find_int(key("vocab_size")); size && *size != n_rows)
    fail(fmt::format(
        "{} is {}, but token_embd.weight has {} rows", key("vocab_size"), *size, n_rows));
  if (const auto tokens = file_.find_strings("tokenizer.ggml.tokens");
      tokens && static_cast<int64_t>(tokens->size()) > n_rows)
    fail(fmt::format("tokenizer.ggml.tokens has {} entries, but token_embd.weight has {} rows",
                     tokens->size(),
                     n_rows));
  return n_rows;
}

RopeConfig GgufReader::read_rope(const ModelConfig& model) const {
  RopeConfig rope;
  rope.theta = file_.find_float(key("rope.freq_base")).value_or(10000.0);
  read_scaling(model, rope);
  if (has_tensor("rope_freqs.weight")) read_frequency_factors(model, rope);
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
    if (has_tensor(name)) fail(fmt::format("tensor {}: longrope is not supported", name));
  return rope;
}

void GgufReader::read_scaling(const ModelConfig& model, RopeConfig& rope) const {
  const auto old_linear = file_.find_float(key("rope.scale_linear"));
  const auto factor = file_.find_float(key("rope.scaling.factor"));
  const std::string type = file_.find_string(key("rope.scaling.type"))
                               .value_or(factor || old_linear ? "linear" : "none");
  if (type == "none") return;
  if (type != "linear" && type != "yarn")
    fail(fmt::format("{} {} is not supported; supported: none, linear, yarn",
                     key("rope.scaling.type"),
                     in_quotes(type)));
  rope.kind = type == "linear" ? RopeKind::linear : RopeKind::yarn;
  if (!factor && !old_linear) fail(fmt::format("{} is missing", key("rope.scaling.factor")));
  rope.factor = factor ? *factor : *old_linear;
  if (rope.kind == RopeKind::linear) {
    // 0 and 1 both mean "unscaled" in files that carry the key anyway.
    if (rope.factor == 0.0 || rope.factor == 1.0) {
      rope.kind = RopeKind::plain;
      rope.factor = 1.0;
    }
    return;
  }
  rope.original_max_positions =
      file_.find_int(key("rope.scaling.original_context_length")).value_or(model.max_positions);
  rope.beta_fast = file_.find_float(key("rope.scaling.yarn_beta_fast")).value_or(rope.beta_fast);
  rope.beta_slow = file_.find_float(key("rope.scaling.yarn_beta_slow")).value_or(rope.beta_slow);
  for (const char* name : {"rope.scaling.attn_factor",
                           "rope.scaling.yarn_attn_factor",
                           "rope.scaling.yarn_ext_factor"})
    if (file_.find_float(key(name)).value_or(1.0) != 1.0)
      fail(fmt::format("{} other than 1 is not supported", key(name)));
}

// GGUF keeps only the divisors of the llama3 rule, as the tensor rope_freqs.weight. Its factor is
// their maximum; the other parameters are those of the Llama 3.1 release, and every divisor must
// come out of them, else the tensor is refused.
void GgufReader::read_frequency_factors(const ModelConfig& model, RopeConfig& rope) const {
  const GgufTensor& tensor = *file_.find_tensor("rope_freqs.weight");
  const GgmlTypeInfo* type = find_ggml_type(tensor.ggml_type);
  const bool is_f32 = type != nullptr && type->dtype == DType::F32;
  const auto n = static_cast<size_t>(model.head_dim / 2);
  if (!is_f32 || tensor.data.size() != n * sizeof(float) || rope.kind != RopeKind::plain || n == 0)
    fail(fmt::format("tensor rope_freqs.weight must be F32 [{}], without rope.scaling", n));
  std::vector<float> divisors(n);
  std::memcpy(divisors.data(), tensor.data.data(), tensor.data.size());
  for (const float divisor : divisors)
    if (!(divisor >= 1.0F && divisor <= 1e6F))
      fail(fmt::format("tensor rope_freqs.weight has the factor {}", divisor));
  const float factor = *std::max_element(divisors.begin(), divisors.end());
  if (factor == 1.0F) return;
  RopeConfig candidate = rope;
  candidate.kind = RopeKind::llama3;
  candidate.factor = factor;
  candidate.low_freq_factor = 1.0;
  candidate.high_freq_factor = 4.0;
  candidate.original_max_positions = 8192;
  const RopeTable scaled = rope_table(candidate, model.head_dim);
  const RopeTable plain = rope_table(rope, model.head_dim);
  // The stored divisors went through a few f32 roundings.
  constexpr double tolerance = 16 * 0x1p-24;
  for (size_t i = 0; i < n; ++i) {
    const double expected = plain.inv_freq[i] / scaled.inv_freq[i];
    if (std::abs(divisors[i] - expected) > tolerance * expected)
      fail(
          fmt::format("tensor rope_freqs.weight[{}] is {}, but the llama3 rule (factor {}, 1, 4, "
                      "8192) gives {}; other rope factors are not supported",
                      i,
                      divisors[i],
                      factor,
                      expected));
  }
  rope = candidate;
}

void GgufReader::read_windows(ModelConfig& model) const {
  if (file_.has(key("attention.sliding_window_pattern")))
    fail(fmt::format("{} is not supported", key("attention.sliding_window_pattern")));
  const int64_t window = find_uniform("attention.sliding_window", model.n_layers).value_or(0);
  model.layer_windows.assign(static_cast<size_t>(model.n_layers), window);
}

void GgufReader::read_special_ids(ModelConfig& model) const {
  for (const char* name : {"eos", "eot", "eom"}) {
    const auto id = file_.find_int(fmt::format("tokenizer.ggml.{}_token_id", name));
    if (!id) continue;
    if (*id < 0 || *id >= model.vocab_size)
      fail(fmt::format("tokenizer.ggml.{}_token_id {} is outside the vocabulary of {}",
                       name,
                       *id,
                       model.vocab_size));
    const auto id32 = static_cast<int32_t>(*id);
    if (std::find(model.eos_ids.begin(), model.eos_ids.end(), id32) == model.eos_ids.end())
      model.eos_ids.push_back(id32);
  }
  const auto bos = file_.find_int("tokenizer.ggml.bos_token_id");
  if (!bos) return;
  if (*bos < 0 || *bos >= model.vocab_size)
    fail(fmt::format(
        "tokenizer.ggml.bos_token_id {} is outside the vocabulary of {}", *bos, model.vocab_size));
  model.bos_id = static_cast<int32_t>(*bos);
}

// By bytes of the matrices.
DType GgufReader::most_common_dtype() const {
  std::map<uint32_t, size_t> n_bytes;
  for (const GgufTensor& tensor : file_.tensors())
    if (tensor.dims.size() >= 2) n_bytes[tensor.ggml_type] += tensor.data.size();
  if (n_bytes.empty()) fail("no weight matrix in the file");
  const auto most =
      std::max_element(n_bytes.begin(), n_bytes.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      });
  const GgmlTypeInfo* type = find_ggml_type(most->first);
  if (type == nullptr || !type->dtype)
    fail(fmt::format("weights of type {} cannot be read",
                     type == nullptr ? fmt::to_string(most->first) : std::string(type->name)));
  return *type->dtype;
}

void GgufReader::refuse_unsupported() const {
  if (file_.tensors().empty()) fail("the file has no tensors");
  if (file_.find_int(key("expert_count")).value_or(0) != 0)
    fail(
        fmt::format("{} is set: mixture-of-experts models are not built yet", key("expert_count")));
}

ModelConfig GgufReader::read() {
  arch_ = read_architecture();
  refuse_unsupported();
  ModelConfig model;
  model.name = std::filesystem::path(file_.name()).stem().string();
  model.family = arch_;
  read_sizes(model);
  model.tied_embeddings = !has_tensor("output.weight");
  model.qkv_bias = has_tensor("blk.0.attn_q.bias");
  model.output_bias = has_tensor("blk.0.attn_output.bias");
  model.mlp_bias = has_tensor("blk.0.ffn_up.bias");
  model.qk_norm = has_tensor("blk.0.attn_q_norm.weight");
  read_windows(model);
  // Sizes must be sane before rope tables are made of them.
  validate(model, file_.name());
  model.rope = read_rope(model);
  read_special_ids(model);
  model.stored_dtype = most_common_dtype();
  validate(model, file_.name());
  return model;
}

}  // namespace

ModelConfig model_config_from_gguf(const GgufFile& file) { return GgufReader(file).read(); }

}  // namespace testbed
