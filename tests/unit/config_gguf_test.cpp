// ModelConfig from GGUF metadata.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>

#include "runtime/config/model_readers.hpp"
#include "runtime/config/rope.hpp"
#include "runtime/weights/gguf_file.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using test::fixture_path;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::string bits(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}
std::string text(const std::string& value) { return bits<uint64_t>(value.size()) + value; }

// A GGUF file in the making: metadata by key (type and encoded value), F32 tensors by name.
struct Gguf {
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<uint64_t>> tensors;  // dims, fastest first
  std::vector<float> rope_freqs;                         // the data of that tensor

  void set_u32(const std::string& key, uint32_t v) { metadata[key] = bits(4U) + bits(v); }
  void set_f32(const std::string& key, float v) { metadata[key] = bits(6U) + bits(v); }
  void set_text(const std::string& key, const std::string& v) {
    metadata[key] = bits(8U) + text(v);
  }
  void set_array(const std::string& key, const std::vector<uint32_t>& values) {
    std::string encoded = bits(9U) + bits(4U) + bits<uint64_t>(values.size());
    for (const uint32_t v : values) encoded += bits(v);
    metadata[key] = encoded;
  }

  std::string bytes() const {
    std::string head =
        "GGUF" + bits(3U) + bits<uint64_t>(tensors.size()) + bits<uint64_t>(metadata.size());
    for (const auto& [key, value] : metadata) head += text(key) + value;
    std::string data;
    for (const auto& [name, dims] : tensors) {
      head += text(name) + bits(static_cast<uint32_t>(dims.size()));
      uint64_t n = 1;
      for (const uint64_t dim : dims) {
        head += bits(dim);
        n *= dim;
      }
      head += bits(0U) + bits<uint64_t>(data.size());
      std::string values(n * sizeof(float), '\0');
      if (name == "rope_freqs.weight") std::memcpy(values.data(), rope_freqs.data(), values.size());
      data += values;
      data.resize((data.size() + 31) / 32 * 32, '\0');
    }
    head.resize((head.size() + 31) / 32 * 32, '\0');
    return head + data;
  }
};

ModelConfig parse(const Gguf& gguf) {
  const std::string bytes = gguf.bytes();
  return model_config_from_gguf(
      GgufFile::parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "toy.gguf"));
}
std::string error_of(const Gguf& gguf) {
  return config_error([&] { parse(gguf); });
}

Gguf toy(const std::string& arch = "llama") {
  Gguf g;
  g.set_text("general.architecture", arch);
  g.set_u32(arch + ".block_count", 3);
  g.set_u32(arch + ".embedding_length", 64);
  g.set_u32(arch + ".feed_forward_length", 96);
  g.set_u32(arch + ".attention.head_count", 8);
  g.set_u32(arch + ".attention.head_count_kv", 2);
  g.set_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5F);
  g.set_u32(arch + ".context_length", 256);
  g.set_f32(arch + ".rope.freq_base", 500000.0F);
  g.set_u32("tokenizer.ggml.eos_token_id", 2);
  g.set_u32("tokenizer.ggml.bos_token_id", 1);
  g.tensors["token_embd.weight"] = {64, 100};
  return g;
}

TEST(ConfigGguf, fixtures_agree_with_their_config_json) {
  for (const auto& [file, model] : std::map<std::string, std::string>{
           {"llama_5layers.gguf", "llama_5layers"},
           {"llama_5layers_split-00001-of-00002.gguf", "llama_5layers"},
           {"qwen2.gguf", "qwen2"}}) {
    SCOPED_TRACE(file);
    ModelConfig gguf = model_config_from_gguf(GgufFile::open(fixture_path("gguf/" + file)));
    ModelConfig hf = model_config_from_hf(fixture_path("models/" + model));
    EXPECT_NEAR(gguf.norm_eps, hf.norm_eps, hf.norm_eps * 0x1p-24);  // f32 in GGUF
    gguf.norm_eps = hf.norm_eps;
    gguf.name = hf.name;
    // Files differ in what they are stored as and in the ids their (toy) tokenizer names.
    gguf.stored_dtype = hf.stored_dtype;
    gguf.eos_ids = hf.eos_ids;
    gguf.bos_id = hf.bos_id;
    EXPECT_EQ(gguf, hf);
  }
}

TEST(ConfigGguf, fields) {
  const ModelConfig model = parse(toy());
  EXPECT_EQ(model.name, "toy");
  EXPECT_EQ(model.family, "llama");
  EXPECT_EQ(model.n_layers, 3);
  EXPECT_EQ(model.d_model, 64);
  EXPECT_EQ(model.d_ff, 96);
  EXPECT_EQ(model.n_heads, 8);
  EXPECT_EQ(model.n_kv_heads, 2);
  EXPECT_EQ(model.head_dim, 8);
  EXPECT_EQ(model.vocab_size, 100);
  EXPECT_EQ(model.max_positions, 256);
  EXPECT_EQ(model.rope.theta, 500000.0);
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_THAT(model.eos_ids, ElementsAre(2));
  EXPECT_EQ(model.bos_id, 1);
  EXPECT_EQ(model.stored_dtype, DType::F32);
  EXPECT_THAT(model.layer_windows, ElementsAre(0, 0, 0));
}

TEST(ConfigGguf, flags_follow_the_tensors) {
  Gguf g = toy("qwen2");
  g.tensors["output.weight"] = {64, 100};
  g.tensors["blk.0.attn_q.bias"] = {64};
  EXPECT_FALSE(parse(g).tied_embeddings);
  EXPECT_TRUE(parse(g).qkv_bias);
  EXPECT_EQ(parse(g).family, "qwen2");
  Gguf q3 = toy("qwen3");
  q3.tensors["blk.0.attn_q_norm.weight"] = {16};
  q3.set_u32("qwen3.attention.key_length", 16);
  q3.set_u32("qwen3.attention.value_length", 16);
  EXPECT_TRUE(parse(q3).qk_norm);
  EXPECT_EQ(parse(q3).head_dim, 16);
}

TEST(ConfigGguf, D11_missing_kv_heads_means_mha) {
  Gguf g = toy();
  g.metadata.erase("llama.attention.head_count_kv");
  EXPECT_EQ(parse(g).n_kv_heads, 8);
}

TEST(ConfigGguf, D12_every_end_token_stops) {
  Gguf g = toy();
  g.set_u32("tokenizer.ggml.eot_token_id", 7);
  g.set_u32("tokenizer.ggml.eom_token_id", 2);
  EXPECT_THAT(parse(g).eos_ids, ElementsAre(2, 7));
  g.set_u32("tokenizer.ggml.eot_token_id", 100);
  EXPECT_THAT(error_of(g), HasSubstr("tokenizer.ggml.eot_token_id 100"));
}

TEST(ConfigGguf, D16_per_layer_arrays_are_honoured_if_equal_else_refused) {
  Gguf g = toy();
  g.set_array("llama.attention.head_count_kv", {2, 2, 2});
  g.set_array("llama.feed_forward_length", {96, 96, 96});
  EXPECT_EQ(parse(g), parse(toy()));
  g.set_array("llama.attention.head_count_kv", {2, 4, 2});
  EXPECT_THAT(error_of(g),
              AllOf(HasSubstr("toy.gguf: llama.attention.head_count_kv"),
                    HasSubstr("differs from layer to layer (2 and 4)")));
  g.set_array("llama.attention.head_count_kv", {2, 2});
  EXPECT_THAT(error_of(g), HasSubstr("2 values for 3 layers"));
  g.set_array("llama.attention.head_count_kv", {});
  EXPECT_NE(error_of(g), "");
}

TEST(ConfigGguf, D16_a_file_without_tensors_is_refused) {
  Gguf g = toy();
  g.tensors.clear();
  EXPECT_THAT(error_of(g), HasSubstr("toy.gguf: the file has no tensors"));
}

TEST(ConfigGguf, windows_and_rope_scaling) {
  Gguf g = toy();
  g.set_u32("llama.attention.sliding_window", 16);
  EXPECT_THAT(parse(g).layer_windows, ElementsAre(16, 16, 16));
  g = toy();
  g.set_text("llama.rope.scaling.type", "linear");
  EXPECT_THAT(error_of(g), HasSubstr("llama.rope.scaling.factor is missing"));
  g.set_f32("llama.rope.scaling.factor", 4.0F);
  EXPECT_EQ(parse(g).rope.kind, RopeKind::linear);
  EXPECT_EQ(parse(g).rope.factor, 4.0);
  g.set_text("llama.rope.scaling.type", "yarn");
  g.set_u32("llama.rope.scaling.original_context_length", 64);
  EXPECT_EQ(parse(g).rope.kind, RopeKind::yarn);
  EXPECT_EQ(parse(g).rope.original_max_positions, 64);
  g.set_f32("llama.rope.scaling.attn_factor", 0.5F);
  EXPECT_THAT(error_of(g), HasSubstr("attn_factor"));
  g.set_text("llama.rope.scaling.type", "longrope");
  EXPECT_THAT(error_of(g), HasSubstr("\"longrope\""));
}

// llama.cpp stores the llama3 rule as divisors: reconstructed exactly, or refused.
TEST(ConfigGguf, rope_freqs_of_llama31_give_the_llama3_rule) {
  Gguf g = toy();
  g.set_u32("llama.attention.key_length", 128);
  g.set_u32("llama.attention.value_length", 128);
  RopeConfig rule;
  rule.kind = RopeKind::llama3;
  rule.theta = 500000.0;
  rule.factor = 32.0;
  rule.original_max_positions = 8192;
  const RopeTable table = rope_table(rule, 128);
  for (size_t i = 0; i < 64; ++i)
    g.rope_freqs.push_back(static_cast<float>(
        std::pow(500000.0, -2.0 * static_cast<double>(i) / 128) / table.inv_freq[i]));
  g.tensors["rope_freqs.weight"] = {64};
  EXPECT_EQ(parse(g).rope, rule);
  g.rope_freqs[32] *= 1.001F;
  EXPECT_THAT(error_of(g), HasSubstr("rope_freqs.weight[32]"));
  g.rope_freqs.assign(64, 1.0F);
  EXPECT_EQ(parse(g).rope.kind, RopeKind::plain);
  g.rope_freqs.assign(64, NAN);
  EXPECT_THAT(error_of(g), HasSubstr("rope_freqs.weight"));
  g.tensors["rope_freqs.weight"] = {32};
  EXPECT_THAT(error_of(g), HasSubstr("rope_freqs.weight"));
}

TEST(ConfigGguf, what_cannot_be_honoured_is_refused) {
  const auto with = [](const std::string& key, uint32_t value) {
    Gguf g = toy();
    g.set_u32(key, value);
    return error_of(g);
  };
  EXPECT_THAT(with("llama.rope.dimension_count", 4), HasSubstr("rope.dimension_count is 4"));
  EXPECT_THAT(with("llama.attention.value_length", 4), HasSubstr("value_length is 4"));
  EXPECT_THAT(with("llama.expert_count", 8), HasSubstr("llama.expert_count"));
  EXPECT_THAT(with("llama.vocab_size", 99), HasSubstr("llama.vocab_size is 99"));
  EXPECT_THAT(with("llama.block_count", 0), HasSubstr("llama.block_count is 0"));
  EXPECT_THAT(with("llama.block_count", UINT32_MAX), HasSubstr("llama.block_count"));
  EXPECT_THAT(with("llama.attention.head_count", 0), HasSubstr("toy.gguf"));
  EXPECT_THAT(with("llama.embedding_length", UINT32_MAX), HasSubstr("toy.gguf"));
  EXPECT_THAT(error_of(toy("mixtral")), HasSubstr("llama, qwen2, qwen3, mistral"));
  Gguf g = toy();
  g.metadata.erase("llama.embedding_length");
  EXPECT_THROW(parse(g), WeightsError);  // GgufFile names file and key
}

}  // namespace
}  // namespace testbed
