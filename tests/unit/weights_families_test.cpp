// The tensors of the families beyond llama: names, spellings of checkpoints, packed experts.
#include "tests/unit/weights_families.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/weights/safetensors_file.hpp"
#include "runtime/weights/tensor_names.hpp"
#include "runtime/weights/weight_source.hpp"
#include "tests/unit/weights_toy.hpp"

namespace testbed {
namespace {

using namespace test;
using testing::ElementsAreArray;

// The raw tensors of a fixture by the names in its files, and one element by its flat index.
class RawFixture {
 public:
  explicit RawFixture(const std::string& name) {
    for (const auto& file : std::filesystem::directory_iterator(fixture("models/" + name)))
      if (file.path().filename().string().starts_with("model") &&
          file.path().extension() == ".safetensors")
        files_.push_back(SafetensorsFile::open(file.path()));
    for (const SafetensorsFile& file : files_)
      for (const auto& [tensor, stored] : file.tensors()) tensors_.emplace(tensor, stored);
  }
  const std::map<std::string, SafetensorsTensor>& tensors() const { return tensors_; }
  float at(const std::string& name, int64_t index) const {
    const SafetensorsTensor& tensor = tensors_.at(name);
    if (tensor.dtype == "F32") {
      float value = 0;
      std::memcpy(&value, tensor.data.data() + index * 4, sizeof(value));
      return value;
    }
    EXPECT_EQ(tensor.dtype, "BF16");
    bf16 value;
    std::memcpy(&value, tensor.data.data() + index * 2, sizeof(value));
    return to_f32(value);
  }
  // The elements that `index` gives for [row, col] of a canonical tensor.
  std::vector<float> matrix(const std::string& name,
                            int64_t rows,
                            int64_t cols,
                            const std::function<int64_t(int64_t, int64_t)>& index) const {
    std::vector<float> out;
    out.reserve(static_cast<size_t>(rows * cols));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < cols; ++col) out.push_back(at(name, index(row, col)));
    return out;
  }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, SafetensorsTensor> tensors_;
};

TEST(FamilyWeights, tensors_under_their_own_names_are_those_of_the_file) {
  for (const auto& [name, config] : families()) {
    const RawFixture raw(name);
    const auto source = open_weights(fixture("models/" + name), config);
    int64_t elements = 0;
    for (const TensorSpec& spec : required_tensors(config)) {
      const auto found = source->find(spec.name);
      ASSERT_TRUE(found) << name << " " << spec.name;
      EXPECT_EQ(found->shape, spec.shape);
      elements += spec.shape.n_elements();
      if (!raw.tensors().contains(spec.name)) continue;
      EXPECT_EQ(
          read_whole(*source, spec.name),
          raw.matrix(spec.name, 1, spec.shape.n_elements(), [](int64_t, int64_t i) { return i; }))
          << name << " " << spec.name;
    }
    int64_t stored = 0;
    for (const auto& [tensor, contents] : raw.tensors()) {
      int64_t n = 1;
      for (const int64_t dim : contents.shape) n *= dim;
      stored += n;
    }
    EXPECT_EQ(elements, stored) << name;  // every stored element is in one canonical tensor
  }
}

TEST(FamilyWeights, mixtral_spellings) {
  const RawFixture raw("mixtral");
  const auto source = open_weights(fixture("models/mixtral"), families().at("mixtral"));
  const auto expect = [&](const std::string& canonical, const std::string& stored, int64_t n) {
    EXPECT_EQ(read_whole(*source, "model.layers.1." + canonical),
              raw.matrix("model.layers.1.block_sparse_moe." + stored,
                         1,
                         n,
                         [](int64_t, int64_t i) { return i; }))
        << canonical;
  };
  expect("mlp.gate.weight", "gate.weight", int64_t{8} * 64);
  expect("mlp.experts.5.gate_proj.weight", "experts.5.w1.weight", int64_t{96} * 64);
  expect("mlp.experts.5.up_proj.weight", "experts.5.w3.weight", int64_t{96} * 64);
  expect("mlp.experts.5.down_proj.weight", "experts.5.w2.weight", int64_t{64} * 96);
}

// [E, in, out]: in 64 and out 96 (gate, up, gate, ...) of gate_up_proj; in 48 and out 64 of
// down_proj.
TEST(FamilyWeights, gpt_oss_experts_are_interleaved_and_transposed) {
  const RawFixture raw("gpt_oss");
  const auto source = open_weights(fixture("models/gpt_oss"), families().at("gpt_oss"));
  const std::string layer = "model.layers.2.mlp.";
  const std::string experts = layer + "experts.";
  for (const int64_t e : {0, 3, 7}) {
    const std::string expert = fmt::format("{}{}.", experts, e);
    const auto gate_up = [&](int64_t which) {
      return raw.matrix(experts + "gate_up_proj", 48, 64, [=](int64_t out, int64_t in) {
        return (e * 64 + in) * 96 + 2 * out + which;
      });
    };
    EXPECT_EQ(read_whole(*source, expert + "gate_proj.weight"), gate_up(0));
    EXPECT_EQ(read_whole(*source, expert + "up_proj.weight"), gate_up(1));
    EXPECT_EQ(read_whole(*source, expert + "down_proj.weight"),
              raw.matrix(experts + "down_proj", 64, 48, [=](int64_t out, int64_t in) {
                return (e * 48 + in) * 64 + out;
              }));
    const auto bias = [&](const std::string& stored, int64_t n, int64_t first, int64_t step) {
      return raw.matrix(
          experts + stored, 1, n, [=](int64_t, int64_t i) { return first + step * i; });
    };
    EXPECT_EQ(read_whole(*source, expert + "gate_proj.bias"),
              bias("gate_up_proj_bias", 48, e * 96, 2));
    EXPECT_EQ(read_whole(*source, expert + "up_proj.bias"),
              bias("gate_up_proj_bias", 48, e * 96 + 1, 2));
    EXPECT_EQ(read_whole(*source, expert + "down_proj.bias"),
              bias("down_proj_bias", 64, e * 64, 1));
  }
  EXPECT_EQ(
      read_whole(*source, layer + "gate.weight"),
      raw.matrix(layer + "router.weight", 8, 64, [](int64_t r, int64_t c) { return r * 64 + c; }));
  EXPECT_EQ(read_whole(*source, layer + "gate.bias"),
            raw.matrix(layer + "router.bias", 1, 8, [](int64_t, int64_t i) { return i; }));
}

// [E, 2 * 32, 64], gate rows before up rows, and [E, 64, 32].
TEST(FamilyWeights, gemma4_experts_and_router) {
  const RawFixture raw("gemma4_moe");
  const auto source = open_weights(fixture("models/gemma4_moe"), families().at("gemma4_moe"));
  const std::string layer = "model.layers.3.";
  for (const int64_t e : {0, 6}) {
    const std::string expert = fmt::format("{}mlp.experts.{}.", layer, e);
    const auto gate_up = [&](int64_t first_row) {
      return raw.matrix(layer + "experts.gate_up_proj", 32, 64, [=](int64_t row, int64_t col) {
        return (e * 64 + first_row + row) * 64 + col;
      });
    };
    EXPECT_EQ(read_whole(*source, expert + "gate_proj.weight"), gate_up(0));
    EXPECT_EQ(read_whole(*source, expert + "up_proj.weight"), gate_up(32));
    EXPECT_EQ(read_whole(*source, expert + "down_proj.weight"),
              raw.matrix(layer + "experts.down_proj", 64, 32, [=](int64_t row, int64_t col) {
                return (e * 64 + row) * 32 + col;
              }));
  }
  const auto same = [&](const std::string& canonical, const std::string& stored, int64_t n) {
    EXPECT_EQ(read_whole(*source, layer + canonical),
              raw.matrix(layer + stored, 1, n, [](int64_t, int64_t i) { return i; }));
  };
  same("mlp.gate.weight", "router.proj.weight", int64_t{8} * 64);
  same("mlp.gate.input_scale", "router.scale", 64);
  same("mlp.gate.expert_scale", "router.per_expert_scale", 8);
  EXPECT_FALSE(source->find(layer + "self_attn.v_proj.weight"));  // its values are its keys
}

TEST(FamilyWeights, layers_that_read_another_cache_have_no_keys) {
  const ModelConfig config = families().at("gemma4_dense");
  std::vector<std::string> attention;
  for (const TensorSpec& spec : layer_tensors(config, 4))
    if (spec.name.find("self_attn") != std::string::npos) attention.push_back(spec.name);
  EXPECT_THAT(attention,
              ElementsAreArray({"model.layers.4.self_attn.q_proj.weight",
                                "model.layers.4.self_attn.q_norm.weight",
                                "model.layers.4.self_attn.o_proj.weight"}));
}

// As a rank's shard would read them, whatever the layout in the file.
TEST(FamilyWeights, slices_are_slices_of_the_whole) {
  for (const auto& [name, config] : families()) {
    const std::unique_ptr<WeightSource> sources[] = {
        open_weights(fixture("models/" + name), config), make_random_weights(config, 3)};
    for (const auto& source : sources) {
      for (const TensorSpec& spec : required_tensors(config)) {
        const bool vector = spec.shape.rank() == 1;
        const int64_t n_rows = vector ? 1 : spec.shape[0];
        const int64_t n_cols = spec.shape[-1];
        const auto whole = read_whole(*source, spec.name);
        const IndexRange rows = vector ? IndexRange{0, 1} : IndexRange{n_rows / 3, n_rows - 1};
        for (const IndexRange cols : {IndexRange{0, n_cols}, IndexRange{n_cols / 4, n_cols / 2}})
          EXPECT_EQ(read_floats(*source, spec.name, rows, cols),
                    slice_of(whole, n_cols, rows, cols))
              << source->description() << " " << spec.name;
      }
    }
  }
}

TEST(FamilyWeights, fewer_layers_than_the_file_open) {
  for (const auto& [name, whole] : families()) {
    const ModelConfig config = truncated_to(whole, 2);
    const auto cut = open_weights(fixture("models/" + name), config);
    const auto full = open_weights(fixture("models/" + name), whole);
    for (const TensorSpec& spec : required_tensors(config)) {
      const bool vector = spec.shape.rank() == 1;
      const IndexRange rows{0, vector ? 1 : spec.shape[0]};
      const IndexRange cols{0, spec.shape[-1]};
      EXPECT_EQ(read_floats(*cut, spec.name, rows, cols), read_floats(*full, spec.name, rows, cols))
          << name << " " << spec.name;
    }
  }
}

}  // namespace
}  // namespace testbed
