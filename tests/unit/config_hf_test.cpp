// Hugging Face config.json in its spellings, and malformed ones.
#include <cstdlib>

#include "runtime/config/model_readers.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using test::file_text;
using test::fixture_models;
using test::fixture_path;
using test::replaced;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig parse(const std::string& text) {
  return model_config_from_hf_text(text, "config.json");
}
std::string error_of(const std::string& text) {
  return config_error([&] { parse(text); });
}
std::string fixture_text(const std::string& model) {
  return file_text(fixture_path("models/" + model + "/config_hub.json"));
}
// A config of model_type `type` with further members.
std::string config(const std::string& type, const std::string& members = "") {
  return R"({"model_type": ")" + type + R"(", "num_hidden_layers": 4, "hidden_size": 64,
    "num_attention_heads": 8, "intermediate_size": 96, "vocab_size": 1000,
    "max_position_embeddings": 2048)" +
         (members.empty() ? "" : ", " + members) + "}";
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = testing::TempDir() + "config-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  std::filesystem::path path_;
};

TEST(ConfigHf, D10_both_spellings_of_every_fixture_are_equal) {
  for (const std::string& model : fixture_models()) {
    SCOPED_TRACE(model);
    const auto folder = fixture_path("models/" + model);
    const ModelConfig newer = model_config_from_hf(folder);
    const ModelConfig hub = model_config_from_hf(folder / "config_hub.json");
    EXPECT_EQ(newer, hub);
    EXPECT_EQ(newer.name, model);
  }
}

TEST(ConfigHf, fixture_fields) {
  const ModelConfig llama = parse(fixture_text("llama3_gqa"));
  EXPECT_EQ(llama.family, "llama");
  EXPECT_EQ(llama.n_layers, 4);
  EXPECT_EQ(llama.d_model, 128);
  EXPECT_EQ(llama.n_heads, 8);
  EXPECT_EQ(llama.n_kv_heads, 2);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.d_ff, 192);
  EXPECT_EQ(llama.vocab_size, 512);
  EXPECT_EQ(llama.max_positions, 256);
  EXPECT_EQ(llama.norm_eps, 1e-5);
  EXPECT_FALSE(llama.tied_embeddings || llama.qkv_bias || llama.output_bias || llama.mlp_bias ||
               llama.qk_norm);
  EXPECT_EQ(llama.rope.kind, RopeKind::llama3);
  EXPECT_EQ(llama.rope.original_max_positions, 64);
  EXPECT_THAT(llama.layer_windows, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(llama.eos_ids, ElementsAre(2));
  EXPECT_EQ(llama.bos_id, 1);
  EXPECT_EQ(llama.stored_dtype, DType::BF16);

  EXPECT_EQ(parse(fixture_text("llama_mha_f32")).stored_dtype, DType::F32);
  EXPECT_THAT(parse(fixture_text("mistral_swa")).layer_windows, ElementsAre(16, 16, 16));
  const ModelConfig qwen2 = parse(fixture_text("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias && qwen2.tied_embeddings);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_THAT(qwen2.layer_windows, ElementsAre(0, 0, 0));
  EXPECT_TRUE(qwen2.eos_ids.empty());
  EXPECT_FALSE(qwen2.bos_id);
  const ModelConfig qwen3 = parse(fixture_text("qwen3"));
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
}

TEST(ConfigHf, D11_explicit_head_dim_wins) {
  const std::string text = R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 2560,
      "num_attention_heads": 32, "head_dim": 128, "intermediate_size": 96, "vocab_size": 100,
      "max_position_embeddings": 64})";
  EXPECT_EQ(parse(text).head_dim, 128);
  EXPECT_EQ(parse(replaced(text, "128", "null")).head_dim, 80);
  EXPECT_EQ(parse(replaced(text, R"("head_dim": 128,)", "")).head_dim, 80);
  EXPECT_THAT(error_of(replaced(replaced(text, "128", "null"), "2560", "2561")),
              HasSubstr("does not divide by 32 heads"));
}

TEST(ConfigHf, D11_missing_kv_heads_means_mha) {
  for (const char* family : {"llama", "qwen2", "qwen3", "mistral"}) {
    EXPECT_EQ(parse(config(family)).n_kv_heads, 8);
    EXPECT_EQ(parse(config(family, R"("num_key_value_heads": null)")).n_kv_heads, 8);
    EXPECT_EQ(parse(config(family, R"("num_key_value_heads": 2)")).n_kv_heads, 2);
  }
}

TEST(ConfigHf, D12_eos_list_and_either_dtype_key) {
  EXPECT_THAT(parse(config("llama", R"("eos_token_id": [1, 106])")).eos_ids, ElementsAre(1, 106));
  EXPECT_THAT(parse(config("llama", R"("eos_token_id": 2)")).eos_ids, ElementsAre(2));
  EXPECT_THAT(parse(config("llama", R"("eos_token_id": null)")).eos_ids, ElementsAre());
  EXPECT_EQ(parse(config("llama", R"("dtype": "float16")")).stored_dtype, DType::F16);
  EXPECT_EQ(parse(config("llama", R"("torch_dtype": "float16")")).stored_dtype, DType::F16);
  EXPECT_EQ(
      parse(config("llama", R"("dtype": "bfloat16", "torch_dtype": "bfloat16")")).stored_dtype,
      DType::BF16);
  EXPECT_EQ(parse(config("llama")).stored_dtype, DType::F32);  // transformers' default
  EXPECT_NE(error_of(config("llama", R"("dtype": "float16", "torch_dtype": "bfloat16")")), "");
  EXPECT_THAT(error_of(config("llama", R"("torch_dtype": "float8_e4m3fn")")),
              HasSubstr("bfloat16, float16, float32"));
}

TEST(ConfigHf, D12_generation_config_adds_its_eos_ids) {
  const TemporaryFolder folder;
  folder.write("config.json", config("llama", R"("eos_token_id": 2)"));
  EXPECT_THAT(model_config_from_hf(folder.path()).eos_ids, ElementsAre(2));
  folder.write("generation_config.json", R"({"eos_token_id": [106, 2], "temperature": 0.6})");
  EXPECT_THAT(model_config_from_hf(folder.path()).eos_ids, ElementsAre(2, 106));
  EXPECT_EQ(model_config_from_hf(folder.path()).name, folder.path().filename().string());
  folder.write("generation_config.json", "{");
  EXPECT_THAT(config_error([&] { model_config_from_hf(folder.path()); }),
              HasSubstr("generation_config.json:1: invalid JSON"));
}

TEST(ConfigHf, missing_file_is_named) {
  const TemporaryFolder folder;
  EXPECT_THAT(config_error([&] { model_config_from_hf(folder.path()); }),
              HasSubstr("config.json: no such file"));
}

TEST(ConfigHf, unsupported_model_type_lists_the_supported_ones) {
  EXPECT_THAT(error_of(config("gpt2")),
              testing::AllOf(HasSubstr("\"gpt2\""),
                             HasSubstr("llama, qwen2, qwen3, mistral, gemma2, gemma3_text")));
  EXPECT_THAT(error_of("{}"), HasSubstr("model_type is missing"));
}

TEST(ConfigHf, qwen_windows) {
  const std::string window = R"("sliding_window": 32, "max_window_layers": 2)";
  for (const char* family : {"qwen2", "qwen3"}) {
    EXPECT_THAT(parse(config(family, window)).layer_windows, ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(parse(config(family, window + R"(, "use_sliding_window": false)")).layer_windows,
                ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(parse(config(family, window + R"(, "use_sliding_window": true)")).layer_windows,
                ElementsAre(0, 0, 32, 32));
    EXPECT_THAT(parse(config(family, R"("sliding_window": null, "use_sliding_window": true)"))
                    .layer_windows,
                ElementsAre(0, 0, 0, 0));
  }
  const std::string types = R"("sliding_window": 32, "use_sliding_window": true, "layer_types":
      ["sliding_attention", "full_attention", "full_attention", "sliding_attention"])";
  EXPECT_THAT(parse(config("qwen2", types)).layer_windows, ElementsAre(32, 0, 0, 32));
  EXPECT_THAT(error_of(config("qwen2", replaced(types, "true", "false"))),
              HasSubstr("no sliding window is in use"));
  EXPECT_THAT(error_of(config("qwen2", replaced(types, "full_", "chunked_"))),
              HasSubstr("\"chunked_attention\""));
  EXPECT_THAT(error_of(config("qwen2", R"("layer_types": ["full_attention"])")),
              HasSubstr("must list 4 layers"));
  EXPECT_NE(error_of(config("qwen2", R"("layer_types": [1, 2, 3, 4])")), "");
}

TEST(ConfigHf, mistral_window) {
  EXPECT_THAT(parse(config("mistral", R"("sliding_window": 5)")).layer_windows,
              ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(parse(config("mistral", R"("sliding_window": null)")).layer_windows,
              ElementsAre(0, 0, 0, 0));
  // MistralConfig's own default.
  EXPECT_EQ(parse(config("mistral")).layer_windows[0], 4096);
  EXPECT_NE(error_of(config("llama", R"("sliding_window": 5)")), "");
}

TEST(ConfigHf, biases) {
  const ModelConfig llama = parse(config("llama", R"("attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(llama.qkv_bias && llama.output_bias && llama.mlp_bias);
  const ModelConfig qwen3 = parse(config("qwen3", R"("attention_bias": true)"));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.output_bias && qwen3.qk_norm);
  EXPECT_NE(error_of(config("mistral", R"("attention_bias": true)")), "");
  EXPECT_NE(error_of(config("qwen2", R"("mlp_bias": true)")), "");
}

TEST(ConfigHf, unsupported_features_are_refused) {
  EXPECT_THAT(error_of(config("llama", R"("hidden_act": "gelu")")),
              HasSubstr("supported: \"silu\""));
  EXPECT_NE(error_of(config("llama", R"("quantization_config": {"quant_method": "gptq"})")), "");
}

TEST(ConfigHf, malformed_json_is_refused_with_its_line) {
  EXPECT_THAT(error_of("{\n\"model_type\": \"llama\",\n\"x\": }"),
              HasSubstr("config.json:3: invalid JSON"));
  EXPECT_THAT(error_of(""), HasSubstr("invalid JSON"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error_of(R"({"a": 1, "b": {"c": 1, "c": 2}})"), HasSubstr("\"c\" appears twice"));
  EXPECT_NE(error_of(config("llama", R"("rms_norm_eps": 1e999)")), "");
  EXPECT_NE(error_of(config("llama", "\"x\": \"\xff\"")), "");
  EXPECT_NE(error_of(config("llama") + "x"), "");
  EXPECT_NE(error_of(std::string(100000, '[')), "");
  EXPECT_NE(error_of("{\"model_type\": \"\\u001b[31m\"}"), "");
}

TEST(ConfigHf, wrong_types_and_sizes_are_refused) {
  const std::string good = config("llama", R"("head_dim": 16)");
  ASSERT_EQ(error_of(good), "");
  for (const char* bad : {"4.0",
                          "-4",
                          "0",
                          "\"4\"",
                          "true",
                          "[4]",
                          "18446744073709551615",
                          "9223372036854775808",
                          "100000000000",
                          "null",
                          "1e3"})
    EXPECT_THAT(
        error_of(replaced(
            good, "\"num_hidden_layers\": 4", std::string("\"num_hidden_layers\": ") + bad)),
        HasSubstr("num_hidden_layers"))
        << bad;
  for (const char* members :
       {R"("num_key_value_heads": 3)", R"("num_key_value_heads": 16)",
        R"("head_dim": 15)",           R"("head_dim": 1099511627776)",
        R"("rms_norm_eps": 0)",        R"("rms_norm_eps": -1e-5)",
        R"("rms_norm_eps": "small")",  R"("rope_theta": 0)",
        R"("rope_theta": -10000)",     R"("rope_scaling": {"type": "linear", "factor": 0})",
        R"("eos_token_id": -1)",       R"("eos_token_id": 1000)",
        R"("eos_token_id": [1.5])",    R"("eos_token_id": [[1]])",
        R"("eos_token_id": "2")",      R"("bos_token_id": 1000)",
        R"("tie_word_embeddings": 1)", R"("tie_word_embeddings": "false")",
        R"("attention_bias": "no")",   R"("sliding_window": 2.5)"})
    EXPECT_THAT(error_of(config("llama", members)), HasSubstr("config.json")) << members;
}

TEST(ConfigHf, truncated_to_keeps_the_first_layers) {
  const ModelConfig model = parse(config(
      "qwen2", R"("sliding_window": 32, "max_window_layers": 1, "use_sliding_window": true)"));
  const ModelConfig two = truncated_to(model, 2);
  EXPECT_EQ(two.n_layers, 2);
  EXPECT_THAT(two.layer_windows, ElementsAre(0, 32));
  EXPECT_THAT(config_error([&] { truncated_to(model, 5); }), HasSubstr("--layers 5"));
  EXPECT_NE(config_error([&] { truncated_to(model, 0); }), "");
}

}  // namespace
}  // namespace testbed
