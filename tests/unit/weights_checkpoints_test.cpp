// Checkpoints whose names or shapes are not those of the model: what opens, and what is refused
// under which name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/weights/tensor_names.hpp"
#include "runtime/weights/weight_source.hpp"
#include "tests/unit/weights_families.hpp"
#include "tests/unit/weights_toy.hpp"

namespace testbed {
namespace {

using namespace test;
using testing::HasSubstr;

std::string error_of(const std::string& name, const ModelConfig& config) {
  return weights_error([&] { open_weights(fixture("models/" + name), config); });
}

TEST(Checkpoints, what_is_wrong_is_named_as_in_the_file) {
  ModelConfig config = gpt_oss_config();
  config.moe->d_ff = 40;
  EXPECT_THAT(error_of("gpt_oss", config),
              HasSubstr("tensor 'model.layers.0.mlp.experts.0.gate_proj.weight' (stored as "
                        "'model.layers.0.mlp.experts.gate_up_proj') has shape [8, 64, 96], the "
                        "model needs [8, 64, 80]"));
  config = gpt_oss_config();
  config.moe->router_bias = false;
  EXPECT_THAT(error_of("gpt_oss", config),
              HasSubstr("tensor 'model.layers.0.mlp.router.bias' is not part of the model"));
  config = mixtral_config();
  config.moe->n_experts = 7;
  EXPECT_THAT(error_of("mixtral", config),
              HasSubstr("tensor 'model.layers.0.mlp.gate.weight' (stored as "
                        "'model.layers.0.block_sparse_moe.gate.weight') has shape [8, 64], the "
                        "model needs [7, 64]"));
  config = mixtral_config();
  config.family = "qwen3_moe";
  config.qk_norm = true;
  EXPECT_THAT(
      error_of("mixtral", config),
      HasSubstr("tensor 'model.layers.0.self_attn.q_norm.weight' of shape [16] is missing"));
}

// A packed layout is known by its family: the same name and shape may mean another order.
TEST(Checkpoints, packed_experts_of_other_families_are_refused) {
  ModelConfig config = gpt_oss_config();
  config.family = "mixtral";
  EXPECT_THAT(error_of("gpt_oss", config),
              HasSubstr("tensor 'model.layers.0.mlp.experts.0.gate_proj.weight' of shape [48, 64] "
                        "is missing"));
}

// gpt_oss's packing of expert tensors, by its definition: [E, in, out], biases [E, out].
void pack_gpt_oss(ToyModel& model, const ModelConfig& config) {
  const std::string experts = "model.layers.0.mlp.experts.";
  const int64_t d = config.d_model;
  const int64_t ff = config.moe->d_ff;
  const auto take = [&](int64_t e, const std::string& leaf) {
    return model.extract(fmt::format("{}{}.{}", experts, e, leaf)).mapped().values;
  };
  const auto append = [](std::vector<float>& to, const std::vector<float>& from, int64_t i) {
    to.push_back(from[static_cast<size_t>(i)]);
  };
  const int64_t n = config.moe->n_experts;
  ToyTensor gate_up{{n, d, 2 * ff}, {}};
  ToyTensor down{{n, ff, d}, {}};
  ToyTensor gate_up_bias{{n, 2 * ff}, {}};
  ToyTensor down_bias{{n, d}, {}};
  for (int64_t e = 0; e < n; ++e) {
    const auto gate = take(e, "gate_proj.weight");
    const auto up = take(e, "up_proj.weight");
    for (int64_t in = 0; in < d; ++in)
      for (int64_t out = 0; out < 2 * ff; ++out)
        append(gate_up.values, out % 2 == 0 ? gate : up, out / 2 * d + in);
    const auto down_of_e = take(e, "down_proj.weight");
    for (int64_t in = 0; in < ff; ++in)
      for (int64_t out = 0; out < d; ++out) append(down.values, down_of_e, out * ff + in);
    const auto gate_bias = take(e, "gate_proj.bias");
    const auto up_bias = take(e, "up_proj.bias");
    for (int64_t out = 0; out < 2 * ff; ++out)
      append(gate_up_bias.values, out % 2 == 0 ? gate_bias : up_bias, out / 2);
    const auto bias = take(e, "down_proj.bias");
    for (int64_t out = 0; out < d; ++out) append(down_bias.values, bias, out);
  }
  model[experts + "gate_up_proj"] = gate_up;
  model[experts + "down_proj"] = down;
  model[experts + "gate_up_proj_bias"] = gate_up_bias;
  model[experts + "down_proj_bias"] = down_bias;
}

// Sizes that are no multiple of the tile of a transposed read, and slices that begin inside one.
TEST(Checkpoints, transposed_reads_of_any_size) {
  ModelConfig config = toy_config();
  config.family = "gpt_oss";
  config.d_model = 150;
  config.moe = moe(2, 70);
  config.moe->expert_bias = true;
  const ToyModel model = toy_model(config);
  ToyModel packed = model;
  pack_gpt_oss(packed, config);
  const test::TemporaryFolder folder;
  const auto source = open_weights(folder.write("m.safetensors", toy_safetensors(packed)), config);
  for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string name = "model.layers.0.mlp.experts.1." + projection + ".weight";
    const ToyTensor& t = model.at(name);
    EXPECT_EQ(read_whole(*source, name), t.values) << name;
    const IndexRange rows{5, t.shape[0] - 1};
    const IndexRange cols{3, 69};
    const auto expected = slice_of(t.values, t.shape[1], rows, cols);
    EXPECT_EQ(read_floats(*source, name, rows, cols), expected) << name;
    const Tensor narrow(DType::BF16, Shape{rows.size(), cols.size()});
    source->read(name, rows, cols, narrow.view());
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(narrow.as<bf16>()[i].bits, to_bf16(expected[i]).bits) << name << " " << i;
    const std::string bias = "model.layers.0.mlp.experts.1." + projection + ".bias";
    EXPECT_EQ(read_whole(*source, bias), model.at(bias).values) << bias;
  }
}

// The file of a fixture with the names of its header changed.
struct Renamed {
  std::string from;
  std::string to;
};
std::string with_names(const std::string& fixture_name,
                       const std::vector<Renamed>& renamed,
                       const std::string& more_entries = "") {
  const std::string file = slurp(fixture("models/" + fixture_name + "/model.safetensors"));
  uint64_t n_header = 0;
  std::memcpy(&n_header, file.data(), sizeof(n_header));
  std::string names = file.substr(8, n_header);
  for (const Renamed& change : renamed)
    for (size_t at = names.find(change.from); at != std::string::npos;
         at = names.find(change.from, at + change.to.size()))
      names.replace(at, change.from.size(), change.to);
  names.insert(1, more_entries);
  return safetensors(names, file.substr(8 + n_header));
}

TEST(Checkpoints, the_language_model_of_a_multimodal_checkpoint_opens) {
  const ModelConfig config = gemma3_config();
  const auto plain = open_weights(fixture("models/gemma3"), config);
  const std::string vision = entry("vision_tower.patch.weight", "F32", "[0]", 0, 0) + ",";
  const test::TemporaryFolder folder;
  for (const std::string prefix : {"model.language_model.", "language_model.model."}) {
    const auto path =
        folder.write("m.safetensors", with_names("gemma3", {{"\"model.", "\"" + prefix}}, vision));
    expect_same_model(config, *plain, *open_weights(path, config), DType::BF16);
  }
  const auto stray = folder.write("s.safetensors", with_names("gemma3", {}, vision));
  EXPECT_THAT(weights_error([&] { open_weights(stray, config); }),
              HasSubstr("tensor 'vision_tower.patch.weight' is not part of the model"));
  const auto twice = folder.write(
      "t.safetensors",
      with_names("gemma3",
                 {{"\"model.norm", "\"model.language_model.norm"},
                  {"\"model.layers.0.input_layernorm", "\"language_model.model.norm"}}));
  EXPECT_THAT(weights_error([&] { open_weights(twice, config); }),
              HasSubstr("tensor 'model.language_model.norm.weight' is stored under two names"));
}

// Exporters may keep the keys and values of layers that read another layer's cache.
TEST(Checkpoints, keys_that_no_layer_reads_are_left_out) {
  const ModelConfig config = gemma4_dense_config();
  const std::string unread =
      entry("model.layers.4.self_attn.k_proj.weight", "BF16", "[0]", 0, 0) + ",";
  const test::TemporaryFolder folder;
  const auto path = folder.write("m.safetensors", with_names("gemma4_dense", {}, unread));
  EXPECT_EQ(weights_error([&] { open_weights(path, config); }), "");
}

}  // namespace
}  // namespace testbed
