// WeightSource over safetensors files and folders: fixtures, slices, fused tensors, and models that
// do not fit their configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/weights/safetensors_file.hpp"
#include "runtime/weights/tensor_names.hpp"
#include "runtime/weights/weight_source.hpp"
#include "tests/unit/weights_toy.hpp"

namespace testbed {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> fixtures = {
    "llama3_gqa", "llama_5layers", "llama_mha_f32", "mistral_swa", "qwen2", "qwen3", "smollm_tied"};

TEST(TensorNames, follow_the_config) {
  ModelConfig c = toy_config();
  EXPECT_EQ(tensor_names(c).size(), 12U);
  c.tied_embeddings = true;
  EXPECT_EQ(tensor_names(c).size(), 11U);
  c.qkv_bias = c.output_bias = c.mlp_bias = c.qk_norm = true;
  EXPECT_EQ(tensor_names(c).size(), 11U + 3 + 1 + 3 + 2);
  EXPECT_THAT(tensor_names(c), testing::Contains("model.layers.0.self_attn.q_norm.weight"));
}

TEST(Weights, every_fixture_opens_with_the_bytes_of_its_file) {
  for (const std::string& name : fixtures) {
    const ModelConfig config = fixture_config(name);
    const auto source = open_weights(fixture("models/" + name), config);
    for (const TensorSpec& spec : required_tensors(config)) {
      const auto found = source->find(spec.name);
      ASSERT_TRUE(found) << name << " " << spec.name;
      EXPECT_EQ(found->dtype, config.stored_dtype);
      EXPECT_EQ(found->shape, spec.shape);
    }
    EXPECT_FALSE(source->find("model.layers.99.mlp.up_proj.weight"));
    const auto file = fixture("models/" + name + "/model.safetensors");
    if (!std::filesystem::exists(file)) continue;
    const SafetensorsFile raw = SafetensorsFile::open(file);
    for (const std::string& tensor : tensor_names(config)) {
      const Tensor read = read_all(*source, tensor, config.stored_dtype);
      const auto& bytes = raw.tensors().at(tensor).data;
      ASSERT_EQ(static_cast<size_t>(read.n_bytes()), bytes.size());
      EXPECT_EQ(std::memcmp(read.data(), bytes.data(), bytes.size()), 0) << tensor;
    }
  }
}

TEST(Weights, slices_are_slices_of_the_whole) {
  const ModelConfig config = fixture_config("llama3_gqa");
  const std::unique_ptr<WeightSource> sources[] = {
      open_weights(fixture("models/llama3_gqa"), config),
      open_weights(fixture("gguf/llama3_gqa.gguf"), config),
      make_random_weights(config, 3)};
  for (const auto& source : sources) {
    for (const TensorSpec& spec : required_tensors(config)) {
      const bool vector = spec.shape.rank() == 1;
      const int64_t n_rows = vector ? 1 : spec.shape[0];
      const int64_t n_cols = spec.shape[-1];
      const auto whole = read_floats(*source, spec.name, {0, n_rows}, {0, n_cols});
      const IndexRange rows = vector ? IndexRange{0, 1} : IndexRange{n_rows / 3, n_rows - 5};
      for (const IndexRange cols : {IndexRange{0, n_cols}, IndexRange{7, n_cols / 2}}) {
        std::vector<float> expected;
        for (int64_t row = rows.begin; row < rows.end; ++row)
          expected.insert(expected.end(),
                          whole.begin() + row * n_cols + cols.begin,
                          whole.begin() + row * n_cols + cols.end);
        EXPECT_EQ(read_floats(*source, spec.name, rows, cols), expected)
            << source->description() << " " << spec.name;
      }
    }
  }
}

TEST(Weights, fewer_layers_than_the_file_open) {
  ModelConfig config = fixture_config("llama_5layers");
  config.n_layers = 2;
  const auto source = open_weights(fixture("models/llama_5layers"), config);
  EXPECT_FALSE(source->find("model.layers.2.mlp.up_proj.weight"));
}

TEST(Weights, D14_missing_shard_is_refused) {
  const test::TemporaryFolder folder;
  std::filesystem::copy(fixture("models/llama3_gqa"), folder.path());
  std::filesystem::remove(folder.path() / "model-00002-of-00002.safetensors");
  EXPECT_THAT(weights_error([&] { open_weights(folder.path(), fixture_config("llama3_gqa")); }),
              AllOf(HasSubstr("model.safetensors.index.json: shard 'model-00002-of-00002"),
                    HasSubstr("missing: " + folder.path().string())));
}

TEST(Weights, D14_tensor_that_is_not_in_its_shard_is_refused) {
  const test::TemporaryFolder folder;
  folder.write("s.safetensors", toy_safetensors(toy_model(toy_config())));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"lost":"s.safetensors"}})");
  EXPECT_THAT(weights_error([&] { open_weights(folder.path(), toy_config()); }),
              HasSubstr("s.safetensors: tensor 'lost' is not in it"));
}

TEST(Weights, bad_index_and_empty_folder_are_refused) {
  const test::TemporaryFolder folder;
  const auto error = [&] {
    return weights_error([&] { open_weights(folder.path(), toy_config()); });
  };
  EXPECT_THAT(error(), HasSubstr("holds neither model.safetensors nor"));
  folder.write("model.safetensors.index.json", "{");
  EXPECT_THAT(error(), HasSubstr("index is not valid JSON"));
  folder.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(error(), HasSubstr("has no object 'weight_map'"));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"x","a":"y"}})");
  EXPECT_THAT(error(), HasSubstr("key 'a' appears twice"));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"../x"}})");
  EXPECT_THAT(error(), HasSubstr("'../x' is not a file name"));
  EXPECT_THAT(weights_error([&] { open_weights(folder.path() / "no", toy_config()); }),
              HasSubstr("no such file or folder"));
  EXPECT_THAT(weights_error([&] { open_weights(folder.write("a.bin", "xxxx"), toy_config()); }),
              HasSubstr("neither a .safetensors file"));
}

TEST(Weights, missing_tensor_and_wrong_shape_are_refused) {
  const test::TemporaryFolder folder;
  const auto error = [&](const ToyModel& model) {
    const auto path = folder.write("m.safetensors", toy_safetensors(model));
    return weights_error([&] { open_weights(path, toy_config()); });
  };
  const ToyModel good = toy_model(toy_config());
  EXPECT_EQ(error(good), "");
  ToyModel missing = good;
  missing.erase("model.layers.0.mlp.down_proj.weight");
  EXPECT_THAT(error(missing),
              HasSubstr("tensor 'model.layers.0.mlp.down_proj.weight' of shape [8, 6] is missing"));
  ToyModel wrong = good;
  wrong["lm_head.weight"].shape = {8, 5};
  EXPECT_THAT(error(wrong),
              HasSubstr("tensor 'lm_head.weight' has shape [8, 5], the model needs [5, 8]"));
  ToyModel biased = good;
  biased["model.layers.0.self_attn.o_proj.bias"] = {{8}, std::vector<float>(8)};
  EXPECT_THAT(error(biased),
              HasSubstr("tensor 'model.layers.0.self_attn.o_proj.bias' is not part "
                        "of the model"));
}

TEST(Weights, unsupported_dtype_is_refused_only_when_read) {
  const ModelConfig config = toy_config();
  const test::TemporaryFolder folder;
  std::string bytes = toy_safetensors(toy_model(config));
  const size_t norm = bytes.find("model.norm.weight");
  bytes.replace(bytes.find("F32", norm), 3, "I32");
  const auto source = open_weights(folder.write("m.safetensors", bytes), config);
  EXPECT_NO_THROW(read_floats(*source, "lm_head.weight", {0, 1}, {0, 8}));
  EXPECT_THAT(weights_error([&] {
                read_floats(*source, "model.norm.weight", {0, 1}, {0, 8});
              }),
              HasSubstr("m.safetensors: tensor 'model.norm.weight' has type I32, which is not"));
}

ToyModel fused_toy(const ModelConfig& config) {
  ToyModel model = toy_model(config);
  const std::string attn = "model.layers.0.self_attn.";
  for (const std::string leaf : {".weight", ".bias"})
    fuse(model,
         {attn + "q_proj" + leaf, attn + "k_proj" + leaf, attn + "v_proj" + leaf},
         attn + "qkv_proj" + leaf);
  fuse(model,
       {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"},
       "model.layers.0.mlp.gate_up_proj.weight");
  return model;
}

TEST(Weights, D5_fused_tensors_are_cut_per_part) {
  ModelConfig config = toy_config();
  config.qkv_bias = true;
  const test::TemporaryFolder folder;
  const auto path = folder.write("m.safetensors", toy_safetensors(fused_toy(config)));
  expect_toy(*open_weights(path, config), config, toy_model(config));
  ToyModel wrong = fused_toy(config);
  wrong["model.layers.0.self_attn.qkv_proj.weight"].shape = {8, 16};
  EXPECT_THAT(weights_error([&] {
                open_weights(folder.write("w.safetensors", toy_safetensors(wrong)), config);
              }),
              HasSubstr("(stored as 'model.layers.0.self_attn.qkv_proj.weight') has shape [8, 16], "
                        "the model needs [16, 8]"));
}

}  // namespace
}  // namespace testbed
