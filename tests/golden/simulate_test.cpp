// Whole simulated runs: exact times worked out by hand, bubbles against DESIGN.md's formulas, the
// memo against the transfers, and what is refused.
#include "runtime/commands/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/cost.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/report/json.hpp"
#include "tests/golden/toy_cluster.hpp"

namespace testbed {
namespace {

using ::testing::HasSubstr;

// A model preset in a file of its own: equal layers, a vocabulary so small that its ends of the
// pipeline weigh nothing.
std::string toy_model(int n_layers, int d_model = 4096) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("testbed-golden-" + std::to_string(getpid()) + ".toml");
  std::ofstream(path) << "name = \"toy\"\nfamily = \"llama\"\nn_layers = " << n_layers
                      << "\nd_model = " << d_model
                      << "\nn_heads = 32\nn_kv_heads = 8\nhead_dim = 128\nd_ff = 14336\n"
                         "vocab_size = 64\nmax_positions = 8192\nnorm_eps = 1e-5\nbos_id = 1\n"
                         "eos_ids = [2]\nstored_dtype = \"bf16\"\n[rope]\ntheta = 10000.0\n";
  return path.string();
}

RunConfig toy_run(int n_layers, ParallelConfig parallel, WorkloadConfig workload) {
  RunConfig config;
  config.model = toy_model(n_layers);
  config.parallel = parallel;
  config.workload = workload;
  return config;
}

const PhaseRecord& phase(const SimulatedRun& run, Phase which) {
  const PhaseRecord* const found = run.record.phase(which);
  EXPECT_NE(found, nullptr);
  return *found;
}

struct Pipelined {
  int microbatches;
  int virtual_stages;
  double bubble;  // of a flushed step
};

class Bubble : public ::testing::TestWithParam<Pipelined> {};

// DESIGN.md: (P-1)/(vM+P-1) if v = 1 or P divides M; 1 - vM/((v-1)P+P-1+M) for M < P.
TEST_P(Bubble, D7_of_equal_stages_is_the_formula_to_one_percent) {
  const Pipelined p = GetParam();
  RunConfig config = toy_run(
      16,
      {.pp = 4, .microbatches = p.microbatches, .virtual_stages = p.virtual_stages},
      // So few tokens that the embedding, on the first stage alone, takes no time to speak of; so
      // many
      // steps that filling and draining the pipeline of decode steps do not count.
      {.batch = p.microbatches, .prompt_tokens = 16, .gen_tokens = p.microbatches > 8 ? 40 : 130});
  const SimulatedRun run = simulate(config, toy_cluster(4), WhatIf::free_links);
  const PipelineRecord& prefill = *phase(run, Phase::prefill).pipeline;
  EXPECT_TRUE(prefill.flushed);
  EXPECT_NEAR(prefill.bubble_measured, p.bubble, 0.01 * p.bubble);
  EXPECT_NEAR(*prefill.bubble_formula, p.bubble, 1e-12);
  if (p.virtual_stages > 1) return;
  const PipelineRecord& decode = *phase(run, Phase::decode).pipeline;
  EXPECT_FALSE(decode.flushed);
  EXPECT_NEAR(decode.bubble_measured, std::max(0.0, 1.0 - p.microbatches / 4.0), 0.01);
}
INSTANTIATE_TEST_SUITE_P(Pp4,
                         Bubble,
                         ::testing::Values(Pipelined{1, 1, 3.0 / 4},
                                           Pipelined{4, 1, 3.0 / 7},
                                           Pipelined{8, 1, 3.0 / 11},
                                           Pipelined{32, 1, 3.0 / 35},
                                           Pipelined{1, 2, 1.0 - 2.0 / 8},
                                           Pipelined{4, 2, 3.0 / 11},
                                           Pipelined{8, 2, 3.0 / 19},
                                           Pipelined{32, 2, 3.0 / 67}));

// tp ranks other than the first wait late for the ids of earlier steps: nobody else is held up by
// that, and chunks of a prompt, which sample nothing, keep their place.
TEST(Bubbles, of_decode_are_bubble_and_not_wait_under_tp) {
  RunConfig config =
      toy_run(8, {.tp = 2, .pp = 2}, {.batch = 1, .prompt_tokens = 3000, .gen_tokens = 40});
  const PhaseRecord decode = phase(simulate(config, toy_cluster(4)), Phase::decode);
  EXPECT_NEAR(decode.pipeline->bubble_measured, 0.5, 0.01);
  EXPECT_NEAR(decode.shares.wait, 0.0, 0.001);
  config.workload.batch = 5;
  EXPECT_GT(phase(simulate(config, toy_cluster(4)), Phase::decode).steps, 0);
}

TEST(Bubbles, of_unequal_stages_are_explained_by_their_busy_times) {
  const RunConfig config = toy_run(
      6, {.pp = 4, .microbatches = 8}, {.batch = 8, .prompt_tokens = 16, .gen_tokens = 130});
  const SimulatedRun run = simulate(config, toy_cluster(4), WhatIf::free_links);
  for (const Phase which : {Phase::prefill, Phase::decode}) {
    const PipelineRecord& pipeline = *phase(run, which).pipeline;
    EXPECT_NEAR(pipeline.bubble_measured, *pipeline.bubble_from_stages, 0.01);
    EXPECT_GT(std::abs(pipeline.bubble_measured - *pipeline.bubble_formula), 0.05);
  }
}

// One request, one layer, tp 2, ideal devices: a decode step is its bytes over 1 TB/s, op by op,
// and its all-reduces' bytes over 100 GB/s.
TEST(Times, of_a_decode_step_are_its_bytes_over_the_rates) {
  const RunConfig config =
      toy_run(1, {.tp = 2}, {.batch = 1, .prompt_tokens = 16, .gen_tokens = 2});
  const SimulatedRun run = simulate(config, toy_cluster(2));
  const int64_t d = 4096;
  const auto seconds = [](const OpCost& cost) {
    const auto n_bytes = static_cast<double>(cost.weight_bytes + cost.kv_bytes +
                                             cost.kv_write_bytes + cost.activation_bytes);
    return std::max(n_bytes / 1e12, static_cast<double>(cost.flops) / 1e14);
  };
  const auto linear = [&](int64_t n, int64_t k) {
    return seconds(linear_cost(1, n, k, n, DType::BF16, DType::BF16));
  };
  const ContiguousSequence decode(1, 17);
  const std::vector<AttentionSequence> one{decode.view()};
  const KvShape kv{.n_kv_heads = 4, .head_dim = 128, .v_dim = 128};
  const double norm = seconds(norm_cost(1, d, false, DType::BF16));
  const double add_norm = seconds(norm_cost(1, d, true, DType::BF16));
  // Rank 0: q, k, v and their rope; the cache; attention of 16 of 32 heads, 4 of 8 KV heads.
  const double attention = linear(2048, d) + 2 * linear(512, d) +
                           seconds(rope_cost(2048, DType::BF16)) +
                           seconds(rope_cost(512, DType::BF16)) + seconds(kv_write_cost(1, kv)) +
                           seconds(attention_cost(one, 0, 16, kv)) + linear(d, 2048);
  const double mlp =
      linear(14336, d) + seconds(activation_cost(1, 7168, DType::BF16)) + linear(d, 7168);
  const double head =
      seconds(copy_cost(d, d, DType::BF16)) + linear(32, d) + seconds(copy_cost(32, 0, DType::F32));
  // 8 KiB each way for the embedding, attention and MLP; 12 bytes of (value, id, finite) for the
  // token.
  const double comm = 3 * 8192 / 1e11 + 12 / 1e11;
  const double step = norm + attention + add_norm + mlp + add_norm + head + comm;
  const double embed_most = seconds(embed_cost(1, 1, d, DType::BF16, DType::BF16));
  const double measured = phase(run, Phase::decode).step_ms.median() * 1e-3;
  EXPECT_GE(measured, step);
  EXPECT_LE(measured, step + embed_most + 2e-9);  // stamps are whole nanoseconds
}

std::string without_fingerprint(SimulatedRun run) {
  run.record.run.fingerprint = {};
  return to_json(run.record);
}

TEST(Simulation, D24_twice_is_bit_identical) {
  RunConfig config =
      toy_run(4, {.tp = 2, .pp = 2, .dp = 2}, {.batch = 4, .prompt_tokens = 64, .gen_tokens = 4});
  const ClusterSpec cluster = read_cluster("dgx-h100");
  EXPECT_EQ(without_fingerprint(simulate(config, cluster)),
            without_fingerprint(simulate(config, cluster)));
}

TEST(Simulation, memoised_collectives_take_what_the_transfers_take) {
  for (const char* name : {"dgx-h100", "h100-pcie-8"}) {
    const ClusterSpec cluster = read_cluster(name);
    const RunConfig config =
        toy_run(4, {.tp = 8}, {.batch = 2, .prompt_tokens = 100, .gen_tokens = 4});
    const SimulatedRun memoised = simulate(config, cluster);
    const SimulatedRun played = simulate(config, cluster, WhatIf::nothing, /*memoise=*/false);
    for (const Phase which : {Phase::prefill, Phase::decode}) {
      const double a = phase(memoised, which).step_ms.median();
      EXPECT_NEAR(phase(played, which).step_ms.median(), a, 1e-6 * a) << name;
    }
  }
}

// Without bf16 weights a linear is charged at the peak that MFU is judged by.
TEST(Simulation, f32_arithmetic_takes_f32_time) {
  RunConfig config = toy_run(2, {.tp = 2}, {.batch = 1, .prompt_tokens = 512, .gen_tokens = 2});
  const double bf16 = phase(simulate(config, toy_cluster(2)), Phase::prefill).step_ms.median();
  config.compute_dtype = DType::F32;
  const SimulatedRun run = simulate(config, toy_cluster(2));
  EXPECT_GT(phase(run, Phase::prefill).step_ms.median(), 5.0 * bf16);  // a tenth of the peak
  EXPECT_LE(*phase(run, Phase::prefill).mfu, 1.0);
}

TEST(Simulation, what_if_changes_one_cost_each) {
  const RunConfig config =
      toy_run(4, {.tp = 2, .pp = 2}, {.batch = 2, .prompt_tokens = 512, .gen_tokens = 4});
  const ClusterSpec cluster = read_cluster("dgx-h100");
  const auto decode_ms = [&](WhatIf what_if) {
    return phase(simulate(config, cluster, what_if), Phase::decode).step_ms.median();
  };
  const double now = decode_ms(WhatIf::nothing);
  const double free_links = decode_ms(WhatIf::free_links);
  const double zero_latency = decode_ms(WhatIf::zero_latency);
  EXPECT_LT(free_links, zero_latency);
  EXPECT_LT(zero_latency, now);
  EXPECT_LT(decode_ms(WhatIf::infinite_memory), now);
  EXPECT_LT(decode_ms(WhatIf::no_waiting), now);
  const SimulatedRun free = simulate(config, cluster, WhatIf::free_links);
  EXPECT_NEAR(phase(free, Phase::decode).shares.interconnect, 0.0, 1e-6);
  const SimulatedRun infinite = simulate(config, cluster, WhatIf::infinite_memory);
  EXPECT_NEAR(phase(infinite, Phase::decode).shares.memory(), 0.0, 1e-9);
}

TEST(Simulation, D31_a_late_rank_is_wait_and_not_wire) {
  RunConfig config = toy_run(2, {.tp = 4}, {.batch = 1, .prompt_tokens = 16, .gen_tokens = 4});
  const SimulatedRun on_time = simulate(config, toy_cluster(4));
  config.inject = {{.rank = 2, .delay_us = 5000}};
  const SimulatedRun late = simulate(config, toy_cluster(4));
  const auto mlp = [](const SimulatedRun& run) {
    const auto& all = phase(run, Phase::decode).collectives;
    return *std::find_if(all.begin(), all.end(), [](const CollectiveRecord& c) {
      return c.op == "all_reduce" && c.site == "mlp";
    });
  };
  EXPECT_NEAR(*mlp(late).wait_us, 5000.0, 1.0);
  EXPECT_NEAR(mlp(late).wire_us.median, mlp(on_time).wire_us.median, 0.01);
  EXPECT_EQ(mlp(late).latest.front().rank, 2);
}

std::string refusal(const RunConfig& config, const ClusterSpec& cluster) {
  try {
    simulate(config, cluster);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "was not refused";
}

TEST(Refused, D28_what_does_not_fit_says_what_would) {
  RunConfig config;
  config.model = "llama3-70b";
  config.parallel.tp = 1;
  EXPECT_THAT(refusal(config, read_cluster("dgx-h100")),
              ::testing::AllOf(HasSubstr("does not fit"),
                               HasSubstr("rank 0"),
                               HasSubstr("weights 131.4"),
                               HasSubstr("--tp 2 --pp 1 would fit")));
}

TEST(Refused, more_devices_than_the_cluster_has) {
  RunConfig config;
  config.model = "llama3-70b";
  config.parallel.tp = 16;
  EXPECT_THAT(refusal(config, read_cluster("dgx-h100")),
              ::testing::AllOf(HasSubstr("= 16 devices"), HasSubstr("has 8")));
}

TEST(Refused, an_algorithm_that_the_links_cannot_do) {
  RunConfig config;
  config.model = "llama3-8b";
  config.parallel.tp = 4;
  config.cluster.algorithm = "nvls";
  EXPECT_THAT(refusal(config, read_cluster("h100-pcie-8")), HasSubstr("can do"));
}

TEST(Labels, D29_tp_across_nodes_is_warned_of) {
  RunConfig config = toy_run(2, {.tp = 8}, {.batch = 1, .prompt_tokens = 16, .gen_tokens = 2});
  const SimulatedRun run = simulate(config, toy_cluster(4, 2));
  EXPECT_TRUE(run.record.run.simulated);
  EXPECT_THAT(run.record.run.labels, ::testing::Contains(HasSubstr("tp 8 crosses nodes")));
  EXPECT_THAT(run.record.run.labels, ::testing::Contains(HasSubstr("SIMULATED on toy")));
}

}  // namespace
}  // namespace testbed
