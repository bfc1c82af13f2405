// Presets: their sizes against published parameter totals, strictness, and where they are found.
#include <fmt/format.h>

#include <cstdlib>

#include "runtime/config/model_readers.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/weights/tensor_names.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using test::file_text;
using test::replaced;
using testing::AllOf;
using testing::HasSubstr;

std::filesystem::path preset_file(const std::string& name) {
  return std::filesystem::path(TESTBED_SOURCE_DIR) / "configs/models" / (name + ".toml");
}
ModelConfig preset(const std::string& name) {
  return model_config_from_toml(file_text(preset_file(name)), name + ".toml");
}

struct Published {
  const char* name;
  int64_t n_parameters;
};

TEST(Presets, parameter_totals_are_the_published_ones) {
  constexpr Published models[] = {{"llama3-70b", 70'553'706'496},
                                  {"llama3-8b", 8'030'261'248},
                                  {"llama3.1-405b", 405'853'388'800},
                                  {"llama2-7b", 6'738'415'616},
                                  {"llama2-70b", 68'976'648'192},
                                  {"qwen2.5-7b", 7'615'616'512},
                                  {"qwen3-8b", 8'190'735'360},
                                  {"qwen3-0.6b", 596'049'920},
                                  {"mistral-7b", 7'241'732'096},
                                  {"smollm2-135m", 134'515'008},
                                  {"mixtral-8x7b", 46'702'792'704},
                                  {"gemma2-27b", 27'227'128'320}};
  for (const Published& model : models) {
    const ModelConfig config = preset(model.name);
    EXPECT_EQ(config.name, model.name);
    EXPECT_EQ(config.n_parameters(), model.n_parameters) << model.name;
  }
}

// The closed form against the list that loading goes by, with every flag in both states.
TEST(Presets, n_parameters_is_the_sum_over_tensors) {
  ModelConfig config = preset("smollm2-135m");
  for (int flags = 0; flags < 32; ++flags) {
    config.tied_embeddings = (flags & 1) != 0;
    config.qkv_bias = (flags & 2) != 0;
    config.output_bias = (flags & 4) != 0;
    config.mlp_bias = (flags & 8) != 0;
    config.qk_norm = (flags & 16) != 0;
    int64_t sum = 0;
    for (const TensorSpec& spec : required_tensors(config)) sum += spec.shape.n_elements();
    EXPECT_EQ(config.n_parameters(), sum) << flags;
  }
}

TEST(Presets, fields_that_totals_do_not_show) {
  const ModelConfig llama31 = preset("llama3.1-405b");
  EXPECT_EQ(llama31.rope.kind, RopeKind::llama3);
  EXPECT_EQ(llama31.rope.factor, 8.0);
  EXPECT_EQ(llama31.rope.original_max_positions, 8192);
  EXPECT_EQ(preset("mistral-7b").layer_windows, std::vector<int64_t>(32, 4096));
  EXPECT_TRUE(preset("qwen2.5-7b").qkv_bias);
  EXPECT_TRUE(preset("qwen3-8b").qk_norm);
  EXPECT_EQ(preset("llama2-7b").stored_dtype, DType::F16);
}

TEST(Presets, D25_misspelt_toml_key_names_file_and_line) {
  const std::string text = file_text(preset_file("llama3.1-405b"));
  const auto error = [&](const std::string& from, const std::string& to) {
    return config_error([&] { model_config_from_toml(replaced(text, from, to), "my.toml"); });
  };
  EXPECT_THAT(error("n_kv_heads", "n_kv_head"),
              AllOf(HasSubstr("my.toml:8: unknown key \"n_kv_head\""),
                    HasSubstr("did you mean n_kv_heads?")));
  EXPECT_THAT(error("low_freq_factor", "low_frequency_factor"),
              HasSubstr("my.toml:22: unknown key \"low_frequency_factor\""));
  EXPECT_THAT(error("[rope]", "[ropes]"), HasSubstr("my.toml:18: unknown key \"ropes\""));
  EXPECT_THAT(error("n_layers = 126", "n_layers = \"126\""),
              HasSubstr("my.toml:5: n_layers must be a whole number"));
  EXPECT_THAT(error("n_layers = 126", "n_layers = 126.0"), HasSubstr("my.toml:5: n_layers"));
  EXPECT_THAT(error("n_layers = 126", "n_layers = "), HasSubstr("my.toml:5: invalid TOML"));
  EXPECT_THAT(error("n_layers = 126", "n_layers = -1"), HasSubstr("my.toml:5: n_layers"));
  EXPECT_THAT(error("n_layers = 126", ""), HasSubstr("n_layers is missing"));
  EXPECT_THAT(error("n_layers = 126", "n_layers = 126\nn_layers = 126"),
              HasSubstr("my.toml:6: invalid TOML"));
  EXPECT_THAT(error("\"llama3\"", "\"ntk\""),
              HasSubstr("plain, linear, llama3, yarn, proportional"));
  EXPECT_THAT(error("\"llama3\"", "\"plain\""), HasSubstr("has no meaning for this rope kind"));
  EXPECT_THAT(error("\"bf16\"", "\"bfloat16\""), HasSubstr("my.toml:16: stored_dtype"));
  EXPECT_THAT(error("[128001]", "128001"), HasSubstr("my.toml:15: eos_ids"));
  EXPECT_THAT(error("\"llama\"", "\"llama3\""), HasSubstr("model family \"llama3\""));
}

// Sets an environment variable for the life of the object.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

TEST(Presets, search_order) {
  EXPECT_EQ(file_text(find_preset("models", "llama3-8b")), file_text(preset_file("llama3-8b")));
  EXPECT_THAT(config_error([] { find_preset("models", "llama9-8b"); }),
              AllOf(HasSubstr("\"llama9-8b\""), HasSubstr("llama3-70b, llama3-8b")));
  EXPECT_NE(config_error([] { find_preset("models", "../models/llama3-8b"); }), "");

  const std::filesystem::path folder = testing::TempDir() + "config-presets";
  std::filesystem::create_directories(folder / "models");
  const auto mine = folder / "models/llama3-8b.toml";
  std::ofstream(mine) << "name = 1\n";
  {
    const Environment variable("TESTBED_CONFIG_DIR", folder.string());
    EXPECT_EQ(find_preset("models", "llama3-8b"), mine);
    EXPECT_EQ(file_text(find_preset("models", "qwen3-8b")), file_text(preset_file("qwen3-8b")));
  }
  EXPECT_NE(find_preset("models", "llama3-8b"), mine);
  std::filesystem::remove_all(folder);
}

TEST(Presets, locate_model) {
  EXPECT_EQ(locate_model("llama3-8b").kind, ModelKind::preset);
  const std::string folder = test::fixture_path("models/qwen2").string();
  EXPECT_EQ(locate_model(folder).kind, ModelKind::hugging_face);
  EXPECT_EQ(read_model_config(locate_model(folder)).family, "qwen2");
  EXPECT_EQ(read_model_config(locate_model("mistral-7b")).family, "mistral");
  EXPECT_EQ(locate_model(preset_file("llama3-8b").string()).kind, ModelKind::preset);
  EXPECT_THAT(config_error([] { locate_model("no-such-model"); }), HasSubstr("smollm2-135m"));
  EXPECT_THAT(config_error([] { locate_model("/tmp"); }), HasSubstr("no config.json"));
}

}  // namespace
}  // namespace testbed
