// KV bytes of every preset, on each device of a split, against closed forms written out here.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/commands/rank_plan.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"
#include "runtime/plan/fits.hpp"
#include "runtime/plan/kv.hpp"
#include "runtime/serving/kv_cache.hpp"

namespace testbed::plan {
namespace {

// Layers that keep the same: n_layers * n_heads * head_bytes bytes a token, in bf16.
struct Kind {
  int64_t n_layers;
  int64_t n_heads;     // KV heads; 0: one latent, on every tp rank
  int64_t head_bytes;  // keys and values of a head; of the latent with its rotated key
  int64_t window;      // tokens; 0: all
};

// The last of every `period` layers are of kinds[1]; period 0: all are of kinds[0].
struct Preset {
  const char* name;
  int64_t bytes_per_token;
  int64_t period;
  std::vector<Kind> kinds;
};

constexpr int64_t of_64 = int64_t{2} * 64 * 2;
constexpr int64_t of_128 = int64_t{2} * 128 * 2;
constexpr int64_t of_256 = int64_t{2} * 256 * 2;
constexpr int64_t of_512 =
    int64_t{2} * 512 * 2;  // K = V: the raw key projection and the rotated keys
constexpr int64_t latent = int64_t{512 + 64} * 2;

std::vector<Preset> presets() {
  return {{"llama2-7b", 524288, 0, {{32, 32, of_128, 0}}},
          {"llama2-70b", 327680, 0, {{80, 8, of_128, 0}}},
          {"llama3-8b", 131072, 0, {{32, 8, of_128, 0}}},
          {"llama3-70b", 327680, 0, {{80, 8, of_128, 0}}},
          {"llama3.1-405b", 516096, 0, {{126, 8, of_128, 0}}},
          {"mistral-7b", 131072, 0, {{32, 8, of_128, 4096}}},
          {"mixtral-8x7b", 131072, 0, {{32, 8, of_128, 0}}},
          {"mixtral-8x22b", 229376, 0, {{56, 8, of_128, 0}}},
          {"qwen2.5-7b", 57344, 0, {{28, 4, of_128, 0}}},
          {"qwen3-0.6b", 114688, 0, {{28, 8, of_128, 0}}},
          {"qwen3-8b", 147456, 0, {{36, 8, of_128, 0}}},
          {"qwen3-30b-a3b", 98304, 0, {{48, 4, of_128, 0}}},
          {"qwen3-235b-a22b", 192512, 0, {{94, 4, of_128, 0}}},
          {"smollm2-135m", 23040, 0, {{30, 3, of_64, 0}}},
          {"gemma2-27b", 376832, 2, {{23, 16, of_128, 4096}, {23, 16, of_128, 0}}},
          {"gemma3-27b", 507904, 6, {{52, 16, of_128, 1024}, {10, 16, of_128, 0}}},
          {"gemma4-26b-a4b", 225280, 6, {{25, 8, of_256, 1024}, {5, 2, of_512, 0}}},
          {"gpt-oss-120b", 73728, 2, {{18, 8, of_64, 128}, {18, 8, of_64, 0}}},
          {"deepseek-v2", 69120, 0, {{60, 0, latent, 0}}},
          {"deepseek-v3", 70272, 0, {{61, 0, latent, 0}}}};
}

const Kind& kind_of(const Preset& preset, int64_t layer) {
  return preset.kinds[preset.period > 0 && layer % preset.period == preset.period - 1 ? 1 : 0];
}
int64_t heads_on_rank(const Kind& kind, int64_t tp) {
  return kind.n_heads == 0 ? 1 : std::max<int64_t>(1, kind.n_heads / tp);
}
int64_t bytes_on_rank(const Kind& kind, int64_t tp) {
  return heads_on_rank(kind, tp) * kind.head_bytes;
}
int64_t kept(const Kind& kind, int64_t context) {
  return kind.window == 0 ? context : std::min(context, kind.window);
}
int64_t sequence_bytes(const Preset& preset, int64_t tp, int64_t context) {
  int64_t n_bytes = 0;
  for (const Kind& kind : preset.kinds) {
    n_bytes += kind.n_layers * bytes_on_rank(kind, tp) * kept(kind, context);
  }
  return n_bytes;
}

ModelConfig model(const std::string& name) { return read_model_config(locate_model(name)); }

bool is_legal(const ModelConfig& config, const Mesh& mesh) {
  return !why_illegal(config, mesh, {}, 1).has_value();
}

TEST(PlanKvFamilies, every_preset_has_its_closed_form) {
  std::set<std::string> on_disk;
  const std::string folder = std::string(TESTBED_SOURCE_DIR) + "/configs/models";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    on_disk.insert(file.path().stem().string());
  }
  std::set<std::string> here;
  for (const Preset& preset : presets()) here.insert(preset.name);
  EXPECT_EQ(here, on_disk);
}

TEST(PlanKvFamilies, bytes_per_token_of_the_model) {
  for (const Preset& preset : presets()) {
    const ModelConfig config = model(preset.name);
    EXPECT_EQ(kv_bytes_per_token(config, DType::BF16), preset.bytes_per_token) << preset.name;
    int64_t by_kind = 0;
    int64_t n_layers = 0;
    for (const Kind& kind : preset.kinds) {
      by_kind += kind.n_layers * bytes_on_rank(kind, 1);
      n_layers += kind.n_layers;
    }
    EXPECT_EQ(by_kind, preset.bytes_per_token) << preset.name;
    EXPECT_EQ(n_layers, config.n_layers) << preset.name;
  }
}

// Layer by layer, what the loader lays out; together what the plan says.
TEST(PlanKvFamilies, bytes_per_token_of_each_rank) {
  int n_checked = 0;
  for (const Preset& preset : presets()) {
    const ModelConfig config = model(preset.name);
    for (const int tp : {1, 2, 4, 8}) {
      for (const int pp : {1, 2, 4}) {
        const Split split{.tp = tp, .pp = pp};
        if (!is_legal(config, split.mesh())) continue;
        int64_t n_layers = 0;
        for (int rank = 0; rank < split.n_devices(); ++rank) {
          const ShardPosition position = position_of(split, rank / tp, rank % tp);
          const std::vector<int64_t> layers = layers_of_rank(config, position);
          int64_t n_bytes = 0;
          for (const KvCache::LayerLayout& layout :
               kv_layouts(config, layers, tp, position.tp_rank)) {
            const int64_t expected = bytes_on_rank(kind_of(preset, layout.layer), tp);
            EXPECT_EQ(dtype_bytes(DType::BF16, layout.shape.elements()), expected) << preset.name;
            EXPECT_EQ(layout.kv_layer, layout.layer) << preset.name;
            n_bytes += expected;
          }
          EXPECT_EQ(kv_bytes_per_token(config, DType::BF16, position), n_bytes) << preset.name;
          if (position.tp_rank == 0) n_layers += static_cast<int64_t>(layers.size());
          ++n_checked;
        }
        EXPECT_EQ(n_layers, config.n_layers) << preset.name;
      }
    }
  }
  EXPECT_GT(n_checked, 500);
}

// The ranks of cp keep a sequence between them; without windows in equal parts.
TEST(PlanKvFamilies, bytes_of_a_sequence_on_each_cp_rank) {
  for (const Preset& preset : presets()) {
    const ModelConfig config = model(preset.name);
    for (const int64_t context : {int64_t{8192}, int64_t{131072}, int64_t{999}}) {
      for (const int tp : {1, 8}) {
        for (const int cp : {1, 2, 4}) {
          const Split split{.tp = tp, .cp = cp};
          if (!is_legal(config, split.mesh())) continue;
          int64_t sum = 0;
          for (int rank = 0; rank < cp; ++rank) {
            const int64_t mine = kv_bytes_of_sequence(
                config, context, DType::BF16, position_of(split, 0, rank * tp));
            const bool even = preset.period == 0 && preset.kinds[0].window == 0 && context != 999;
            if (even) {
              EXPECT_EQ(mine, sequence_bytes(preset, tp, context) / cp) << preset.name;
            }
            sum += mine;
          }
          EXPECT_EQ(sum, sequence_bytes(preset, tp, context))
              << preset.name << " at " << context << ", tp " << tp << ", cp " << cp;
        }
      }
    }
  }
}

double saving(const std::string& name, int64_t context) {
  const ModelConfig config = model(name);
  const auto all = static_cast<double>(context * kv_bytes_per_token(config, DType::BF16));
  return all / static_cast<double>(kv_bytes_of_sequence(config, context, DType::BF16));
}

TEST(PlanKvFamilies, windows_save) {
  EXPECT_NEAR(saving("gemma2-27b", 8192), 1.3, 0.05);
  EXPECT_NEAR(saving("gemma2-27b", 131072), 1.9, 0.05);
  EXPECT_NEAR(saving("gemma3-27b", 131072), 6.0, 0.05);
  // Its 5 full layers keep 2 heads of 512, half of what the others do of a token.
  EXPECT_NEAR(saving("gemma4-26b-a4b", 131072), 10.2, 0.05);
  EXPECT_DOUBLE_EQ(saving("llama3-70b", 131072), 1.0);
}

RunInputs inputs_of(const ModelConfig& config, int64_t prompt) {
  RunInputs inputs{.model = config, .source = make_random_weights(config, 0), .workload = {}};
  Request request;
  request.prompt_ids.assign(static_cast<size_t>(prompt), 0);
  request.max_new_tokens = 1;  // sampled by the prompt's step, never cached
  inputs.workload.requests.push_back(std::move(request));
  return inputs;
}

MemoryRecord memory_of(const RunInputs& inputs, const Split& split, int rank) {
  RunConfig run;
  run.compute_dtype = DType::BF16;
  run.parallel.tp = split.tp;
  run.parallel.cp = split.cp;
  run.parallel.pp = split.pp;
  return planned_memory(run, inputs, split.mesh(), rank);
}

// What a run says it will hold: the same bytes a token; over cp a pool of the rank's part.
TEST(PlanKvFamilies, planned_memory_agrees) {
  constexpr int64_t prompt = 8192;
  const std::vector<Split> splits{
      {.tp = 1}, {.tp = 8}, {.tp = 2, .cp = 4}, {.tp = 4, .pp = 2, .cp = 2}, {.tp = 1, .pp = 4}};
  for (const Preset& preset : presets()) {
    const ModelConfig config = model(preset.name);
    const RunInputs inputs = inputs_of(config, prompt);
    for (const Split& split : splits) {
      if (!is_legal(config, split.mesh())) continue;
      for (int stage = 0; stage < split.pp; ++stage) {
        const int last = split.mesh().stage_size() - 1;
        const MemoryRecord memory = memory_of(inputs, split, stage * (last + 1) + last);
        int64_t per_token = 0;
        bool has_window = false;
        for (const int64_t layer : layers_of_rank(config, position_of(split, stage, last))) {
          per_token += bytes_on_rank(kind_of(preset, layer), split.tp);
          has_window = has_window || kind_of(preset, layer).window > 0;
        }
        EXPECT_EQ(memory.kv_bytes_per_token, per_token) << preset.name << " tp " << split.tp;
        if (!has_window) {
          EXPECT_EQ(memory.kv_pool_bytes, prompt / split.cp * per_token)
              << preset.name << " cp " << split.cp;
        }
      }
    }
  }
}

}  // namespace
}  // namespace testbed::plan
