// Whatever decides what is run is in the canonical text.
#include <functional>
#include <set>

#include "runtime/config/command_line.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using Args = std::vector<std::string>;

RunConfig parse(Args args) {
  args.insert(args.end(), {"--model", "llama3-8b"});
  return std::get<RunConfig>(parse_command_line(args));
}

TEST(CanonicalText, tells_configurations_apart) {
  const ModelConfig model;
  const std::string base = canonical_text(parse({}), model);
  EXPECT_EQ(base, canonical_text(parse({"run", "--tp", "1"}), model));
  EXPECT_EQ(base, canonical_text(parse({"--json", "a.json", "--quiet"}), model));
  for (const Args& args : {Args{"--tp", "2"},
                           Args{"--dp", "1"},
                           Args{"--seed", "1"},
                           Args{"--layers", "1"},
                           Args{"--prompt", "a"},
                           Args{"--compute-dtype", "f32"},
                           Args{"--weight-dtype", "bf16"},
                           Args{"--weight-dtype", "int8"},
                           Args{"--cluster", "dgx-a100"},
                           Args{"--link-gb-s", "25"},
                           Args{"--link-us", "1"},
                           Args{"--algorithm", "ring"},
                           Args{"--layout", "shm"},
                           Args{"--allow-shared-gpu"},
                           Args{"--inject", "delay:rank=0,us=1"},
                           Args{"--inject", "flip:rank=0"},
                           Args{"--cp-layout", "contiguous"},
                           Args{"--expert-exchange", "all-to-all"},
                           Args{"--tp-comm", "reduce-scatter"},
                           Args{"--max-step-tokens", "64"},
                           Args{"--deterministic"},
                           Args{"--kv-block-size", "8"}})
    EXPECT_NE(base, canonical_text(parse(args), model)) << testing::PrintToString(args);
  const Args int8{"--weight-dtype", "int8"};
  EXPECT_EQ(canonical_text(parse(int8), model),
            canonical_text(parse({"--weight-dtype", "int8", "--weight-group", "32"}), model));
  EXPECT_NE(canonical_text(parse(int8), model),
            canonical_text(parse({"--weight-dtype", "int8", "--weight-group", "row"}), model));
}

TEST(CanonicalText, tells_models_apart) {
  const std::string base = canonical_text(parse({}), ModelConfig{});
  const std::vector<std::function<void(ModelConfig&)>> changes{
      [](ModelConfig& m) { m.rope.attention_factor = 1.0; },
      [](ModelConfig& m) { m.rope.interleaved = true; },
      [](ModelConfig& m) { m.rope.rotary_fraction = 0.25; },
      [](ModelConfig& m) { m.v_norm = true; },
      [](ModelConfig& m) { m.attention_sinks = true; },
      [](ModelConfig& m) { m.norms = NormPlacement::sandwich; },
      [](ModelConfig& m) { m.norm_adds_one = true; },
      [](ModelConfig& m) { m.activation = Activation::gelu_tanh; },
      [](ModelConfig& m) { m.scaled_embedding = true; },
      [](ModelConfig& m) { m.layer_scalars = true; },
      [](ModelConfig& m) { m.attention_scale = 1.0; },
      [](ModelConfig& m) { m.attention_softcap = 50.0; },
      [](ModelConfig& m) { m.final_softcap = 30.0; },
      [](ModelConfig& m) { m.window_rope.emplace(); },
      [](ModelConfig& m) { m.full_attention.emplace(); },
      [](ModelConfig& m) { m.full_attention.emplace().key_is_value = true; },
      [](ModelConfig& m) { m.n_shared_kv_layers = 1; },
      [](ModelConfig& m) { m.double_wide_shared_mlp = true; },
      [](ModelConfig& m) { m.mla.emplace(); },
      [](ModelConfig& m) { m.mla.emplace().rope_dim = 64; },
      [](ModelConfig& m) { m.moe.emplace(); },
      [](ModelConfig& m) { m.moe.emplace().routing.renormalise = true; },
      [](ModelConfig& m) { m.moe.emplace().dense_layers = {0}; },
      [](ModelConfig& m) { m.per_layer_input.emplace(); }};
  std::set<std::string> texts{base};
  for (const auto& change : changes) {
    ModelConfig other;
    change(other);
    texts.insert(canonical_text(parse({}), other));
  }
  EXPECT_EQ(texts.size(), changes.size() + 1);
}

}  // namespace
}  // namespace testbed
