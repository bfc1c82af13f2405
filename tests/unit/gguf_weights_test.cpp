// WeightSource over GGUF: Hugging Face names, llama's row order, fused tensors, split sets, blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "kernels/quantise.hpp"
#include "runtime/weights/convert.hpp"
#include "runtime/weights/file_weights.hpp"
#include "runtime/weights/safetensors_file.hpp"
#include "runtime/weights/tensor_names.hpp"
#include "runtime/weights/weight_source.hpp"
#include "tests/unit/weights_toy.hpp"

namespace testbed {
namespace {

using namespace test;
using testing::HasSubstr;

TEST(Weights, gguf_equals_the_safetensors_it_was_made_from) {
  for (const std::string name : {"llama_5layers", "llama3_gqa", "qwen2"}) {
    const ModelConfig config = fixture_config(name);
    expect_same_model(config,
                      *open_weights(fixture("models/" + name), config),
                      *open_weights(fixture("gguf/" + name + ".gguf"), config),
                      DType::F32);
  }
}

TEST(Weights, D16_split_gguf_loads_fully) {
  const ModelConfig config = fixture_config("llama_5layers");
  expect_same_model(config,
                    *open_weights(fixture("models/llama_5layers"), config),
                    *open_weights(fixture("gguf/llama_5layers_split-00001-of-00002.gguf"), config),
                    DType::BF16);
}

TEST(Weights, D16_gguf_without_tensors_is_refused) {
  const test::TemporaryFolder folder;
  const auto path =
      folder.write("m.gguf", GgufBuilder().text("general.architecture", "llama").bytes());
  EXPECT_EQ(weights_error([&] { open_weights(path, toy_config()); }),
            path.string() + ": holds no tensors, only metadata");
}

// GGUF of a toy model. Modules whose rows are reordered for architecture llama are done here by the
// formula of the fixtures' README, independently of the reader: gguf[h, 2i+j] = hf[h, j*d/2+i].
std::string toy_gguf(const ModelConfig& config,
                     ToyModel model,
                     const std::string& arch,
                     bool fused,
                     const std::string& q8_down = "") {
  const std::map<std::string, std::string> names = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
      {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"},
      {"model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight"},
      {"model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight"},
      {"model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"},
      {"model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias"},
      {"model.layers.0.self_attn.k_proj.bias", "blk.0.attn_k.bias"},
      {"model.layers.0.self_attn.v_proj.bias", "blk.0.attn_v.bias"},
      {"model.layers.0.self_attn.qkv_proj.weight", "blk.0.attn_qkv.weight"},
      {"model.layers.0.self_attn.qkv_proj.bias", "blk.0.attn_qkv.bias"},
      {"model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"},
      {"model.layers.0.self_attn.k_norm.weight", "blk.0.attn_k_norm.weight"},
      {"model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"},
      {"model.layers.0.self_attn.o_proj.bias", "blk.0.attn_output.bias"},
      {"model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"},
      {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight"},
      {"model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight"},
      {"model.layers.0.mlp.gate_up_proj.weight", "blk.0.ffn_up.weight"},
      {"model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"}};
  const auto reorder = [&](const std::string& name) {
    if (!model.contains(name)) return;
    ToyTensor& t = model[name];
    const ToyTensor hf = t;
    const int64_t width = t.shape.size() == 1 ? 1 : t.shape[1];
    const int64_t d = config.head_dim;
    for (int64_t h = 0; h < t.shape[0] / d; ++h)
      for (int64_t i = 0; i < d / 2; ++i)
        for (int64_t j = 0; j < 2; ++j)
          std::copy_n(hf.values.begin() + (h * d + j * d / 2 + i) * width,
                      width,
                      t.values.begin() + (h * d + 2 * i + j) * width);
  };
  if (arch == "llama")
    for (const std::string part : {"q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"})
      reorder("model.layers.0.self_attn." + part);
  if (fused) {
    const std::string attn = "model.layers.0.self_attn.";
    for (const std::string leaf : {".weight", ".bias"})
      fuse(model,
           {attn + "q_proj" + leaf, attn + "k_proj" + leaf, attn + "v_proj" + leaf},
           attn + "qkv_proj" + leaf);
    fuse(model,
         {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"},
         "model.layers.0.mlp.gate_up_proj.weight");
  }
  GgufBuilder b;
  b.text("general.architecture", arch);
  for (const auto& [name, t] : model)
    b.tensor(names.at(name),
             std::vector<uint64_t>(t.shape.rbegin(), t.shape.rend()),
             0,
             float_bytes(t.values));
  if (!q8_down.empty())
    b.tensor("blk.0.ffn_down.weight", {static_cast<uint64_t>(config.d_ff), 8}, 8, q8_down);
  return b.bytes();
}

TEST(Weights, gguf_names_and_row_order) {
  ModelConfig config = toy_config();
  config.qkv_bias = config.output_bias = config.qk_norm = true;
  const ToyModel model = toy_model(config);
  const test::TemporaryFolder folder;
  for (const std::string arch : {"llama", "qwen2", "qwen3"})
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(arch + (fused ? " fused" : ""));
      const auto path = folder.write("m.gguf", toy_gguf(config, model, arch, fused));
      expect_toy(*open_weights(path, config), config, model);
    }
}

TEST(Weights, gguf_of_unknown_row_order_is_refused) {
  const ModelConfig config = toy_config();
  const test::TemporaryFolder folder;
  const auto path = folder.write("m.gguf", toy_gguf(config, toy_model(config), "mistral", false));
  EXPECT_THAT(weights_error([&] { open_weights(path, config); }),
              HasSubstr("general.architecture 'mistral' is not supported"));
}

TEST(Weights, gguf_without_gate_names_it_as_missing) {
  const ModelConfig config = toy_config();
  const test::TemporaryFolder folder;
  ToyModel model = toy_model(config);
  model.erase("model.layers.0.mlp.gate_proj.weight");
  const auto path = folder.write("m.gguf", toy_gguf(config, model, "llama", false));
  EXPECT_THAT(weights_error([&] { open_weights(path, config); }),
              HasSubstr("tensor 'model.layers.0.mlp.gate_proj.weight' of shape [6, 8] is missing"));
}

TEST(Weights, rope_divisors_that_the_config_does_not_give_are_refused) {
  ModelConfig config = fixture_config("llama3_gqa");
  const auto error = [&] {
    return weights_error([&] { open_weights(fixture("gguf/llama3_gqa.gguf"), config); });
  };
  EXPECT_EQ(error(), "");
  config.rope.factor = 7.0;
  EXPECT_THAT(error(), HasSubstr("'rope_freqs.weight': rope divisor"));
  config.rope.kind = RopeKind::plain;
  EXPECT_THAT(error(), HasSubstr("its rope scaling is another"));
}

// Block types against the reference dequantisation (gguf-py) in tests/fixtures/units.
class GgufBlocks : public testing::TestWithParam<DType> {};

std::string upper(std::string_view name) {
  std::string out(name);
  std::transform(
      out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

TEST_P(GgufBlocks, expand_to_the_reference_exactly) {
  const auto file = SafetensorsFile::open(fixture("units/gguf_blocks.safetensors"));
  const std::string type = upper(dtype_name(GetParam()));
  const auto& bytes = file.tensors().at(type + ".bytes").data;
  const auto& expected = file.tensors().at(type + ".dequant");
  const int64_t n = expected.shape[0] * expected.shape[1];
  ASSERT_EQ(static_cast<size_t>(dtype_bytes(GetParam(), n)), bytes.size());
  std::vector<float> out(static_cast<size_t>(n));
  convert_elements(
      GetParam(), bytes.data(), n, DType::F32, reinterpret_cast<std::byte*>(out.data()));
  std::vector<float> reference(out.size());
  std::memcpy(reference.data(), expected.data.data(), expected.data.size());
  EXPECT_EQ(out, reference);
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    GgufBlocks,
    testing::Values(DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q4_K, DType::Q6_K, DType::BF16),
    [](const auto& p) { return std::string(dtype_name(p.param)); });

class GgufNativeBlocks : public testing::TestWithParam<DType> {};

// Bytes of 12 rows of 512 in blocks, seen as q_proj of 3 heads of 4 in llama's row order; every
// other tensor is zero.
std::unique_ptr<FileWeights> weights_in_blocks(const SafetensorsFile& file, DType dtype) {
  ModelConfig config = toy_config();
  config.n_heads = 3;
  config.d_model = 512;
  const std::string type = upper(dtype_name(dtype));
  static const std::vector<std::byte> zeros(512 * 64 * sizeof(float));
  const auto locate = [&](const TensorSpec& spec) -> std::optional<StoredPart> {
    const StoredPlace place = whole_place(spec.name, spec);
    MappedTensor tensor{spec.name, "m.gguf", "F32", DType::F32, place.shape, zeros};
    if (spec.name != "model.layers.0.self_attn.q_proj.weight")
      return StoredPart{std::make_shared<MappedTensor>(tensor), place};
    tensor.dtype = dtype;
    tensor.bytes = file.tensors().at(type + ".bytes").data;
    return StoredPart{std::make_shared<MappedTensor>(tensor), place, config.head_dim};
  };
  return std::make_unique<FileWeights>("m.gguf", config, locate, nullptr);
}

TEST_P(GgufNativeBlocks, stand_for_what_they_expand_to) {
  const auto file = SafetensorsFile::open(fixture("units/gguf_blocks.safetensors"));
  const auto source = weights_in_blocks(file, GetParam());
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const std::vector<std::pair<IndexRange, IndexRange>> slices{
      {{0, 12}, {0, 512}}, {{4, 8}, {0, 512}}, {{1, 7}, {32, 192}}, {{11, 12}, {480, 512}}};
  for (const auto& [rows, cols] : slices) {
    const QuantisedTensor blocks(native_format(GetParam()), rows.size(), cols.size());
    source->read_blocks(name, rows, cols, blocks);
    const Tensor values(DType::F32, {rows.size(), cols.size()});
    dequantise(blocks, values);
    EXPECT_EQ(std::vector<float>(values.as<float>(), values.as<float>() + values.n_elements()),
              read_floats(*source, name, rows, cols));
  }
  const QuantisedTensor cut(native_format(GetParam()), 12, 40);
  EXPECT_THAT(weights_error([&] {
                source->read_blocks(name, {0, 12}, {32, 72}, cut);
              }),
              HasSubstr("q_proj.weight': columns [32, 72) do not start and end on a block of 32"));
}

INSTANTIATE_TEST_SUITE_P(Types,
                         GgufNativeBlocks,
                         testing::Values(DType::Q8_0, DType::Q4_0, DType::Q4_1),
                         [](const auto& p) { return std::string(dtype_name(p.param)); });

TEST(Weights, D4_quantised_columns_are_cut_on_blocks_only) {
  ModelConfig config = toy_config();
  config.d_ff = 96;
  const test::TemporaryFolder folder;
  const auto file = SafetensorsFile::open(fixture("units/gguf_blocks.safetensors"));
  const auto& blocks = file.tensors().at("Q8_0.bytes").data;
  const std::string data(reinterpret_cast<const char*>(blocks.data()), 8 * 96 / 32 * 34);
  ToyModel model = toy_model(config);
  model.erase("model.layers.0.mlp.down_proj.weight");
  const auto path = folder.write("m.gguf", toy_gguf(config, model, "llama", false, data));
  const auto source = open_weights(path, config);
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  EXPECT_EQ(source->find(name)->dtype, DType::Q8_0);
  const auto whole = read_floats(*source, name, {0, 8}, {0, 96});
  const auto part = read_floats(*source, name, {2, 4}, {32, 96});
  for (size_t row = 0; row < 2; ++row)
    for (size_t col = 0; col < 64; ++col)
      EXPECT_EQ(part[row * 64 + col], whole[(row + 2) * 96 + 32 + col]);
  EXPECT_THAT(weights_error([&] {
                read_floats(*source, name, {0, 8}, {48, 96});
              }),
              HasSubstr("columns [48, 96) do not start and end on a block of 32 q8_0"));
}

}  // namespace
}  // namespace testbed
