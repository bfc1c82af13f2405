// Ring attention on simulated clusters: what zigzag placement gains, from which length transfers
// are hidden, what windows leave unsent, and what decoding over cp reads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>

#include "runtime/commands/simulate.hpp"
#include "runtime/config/cluster_config.hpp"
#include "tests/golden/toy_cluster.hpp"

namespace testbed {
namespace {

RunConfig prefill(const std::string& model, int cp, int64_t prompt_tokens, CpPlacement placement) {
  RunConfig config;
  config.model = model;
  config.layers = 1;
  config.parallel = {.cp = cp, .cp_placement = placement};
  config.workload = {.batch = 1, .prompt_tokens = prompt_tokens, .gen_tokens = 1};
  config.max_step_tokens = prompt_tokens;  // one step
  return config;
}

const PhaseRecord& phase(const SimulatedRun& run, Phase which) {
  const PhaseRecord* const found = run.record.phase(which);
  EXPECT_NE(found, nullptr);
  return *found;
}

// [rank] time in attention.
std::vector<double> attention_s(const SimulatedRun& run) {
  std::vector<double> seconds;
  seconds.reserve(run.timelines.size());
  for (const RankTimeline& timeline : run.timelines) {
    int64_t ns = 0;
    for (const OpEvent& event : timeline.ops) {
      if (event.op.kind == OpKind::attention) ns += event.op.end_ns - event.op.begin_ns;
    }
    seconds.push_back(static_cast<double>(ns) * 1e-9);
  }
  return seconds;
}

double slowest(const std::vector<double>& seconds) {
  return *std::max_element(seconds.begin(), seconds.end());
}

// What the group did of what it could have done while its slowest rank was busy.
double efficiency(const std::vector<double>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) /
         (static_cast<double>(seconds.size()) * slowest(seconds));
}

// Contiguous: rank r of n attends to r whole blocks and half of its own, so that products alone
// give (n^2 / 2) / (n (n - 1/2)) = n / (2n - 1) = 8/15. Queries, outputs and KV are read whole for
// the half block too: of those, rank r has r + 1, which alone would give (n + 1) / (2n) = 9/16.
// Attention is a sum of both. Zigzag: every rank has the same products, and q and out as often;
// only a rank with early blocks reads more KV, which at this length is below one percent of the
// products.
TEST(Placement, zigzag_evens_out_what_contiguous_blocks_do_not) {
  constexpr int n = 8;
  const ClusterSpec cluster = read_cluster("dgx-h100");
  const auto run = [&](CpPlacement placement) {
    return simulate(prefill("llama3.1-405b", n, 65536, placement), cluster);
  };
  const SimulatedRun zigzag = run(CpPlacement::zigzag);
  const SimulatedRun contiguous = run(CpPlacement::contiguous);
  const std::vector<double> even = attention_s(zigzag);
  const std::vector<double> uneven = attention_s(contiguous);
  EXPECT_GE(efficiency(even), 0.99);
  EXPECT_LE(efficiency(even), 1.0);
  EXPECT_GE(efficiency(uneven), 8.0 / 15 - 1e-3);  // block diagonals: c (c + 1) / 2 pairs
  EXPECT_LE(efficiency(uneven), 9.0 / 16);
  // What the slowest rank saves of attention, the step saves.
  const double zigzag_ms = phase(zigzag, Phase::prefill).step_ms.median();
  const double contiguous_ms = phase(contiguous, Phase::prefill).step_ms.median();
  const double saved_ms = (slowest(uneven) - slowest(even)) * 1e3;
  EXPECT_NEAR(contiguous_ms - zigzag_ms, saved_ms, 0.01 * saved_ms);
  std::cout << "efficiency of attention: zigzag " << efficiency(even) << ", contiguous "
            << efficiency(uneven) << "; step " << zigzag_ms << " and " << contiguous_ms << " ms\n";
}

// Shapes of one layer, head size 128; everything else is so small that it weighs nothing.
struct Heads {
  int64_t q = 0;
  int64_t kv = 0;
  int64_t kv_token_bytes() const { return 2 * kv * 128 * 2; }  // K and V, bf16
};

std::string model_file(Heads heads, int64_t window = 0) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("testbed-ring-" + std::to_string(getpid()) + ".toml");
  std::ofstream file(path);
  file << "name = \"toy\"\nfamily = \"mistral\"\nn_layers = 1\nd_model = 64\nd_ff = 64\nn_heads = "
       << heads.q << "\nn_kv_heads = " << heads.kv
       << "\nhead_dim = 128\nvocab_size = 64\nmax_positions = 65536\nnorm_eps = 1e-5\nbos_id = 1\n"
          "eos_ids = [2]\nstored_dtype = \"bf16\"\n";
  if (window > 0) file << "window = " << window << "\n";
  file << "[rope]\ntheta = 10000.0\n";
  return path.string();
}

// A rank with c tokens attends at each ring step to c^2 / 2 visible pairs (zigzag: of the four
// quarters of c x c two are visible), 4 * 128 FLOPs per head and pair, while it passes on the K and
// V of c tokens, 2 * 128 * 2 bytes per KV head:
//   compute C = 2 * 128 n_heads c^2 / FLOPs,  transfer T = 4 * 128 n_kv_heads c / bandwidth.
// They are equal at c = (FLOPs / bandwidth) * 2 bytes * n_kv_heads / n_heads.
class HiddenTransfers : public ::testing::Test {
 protected:
  static constexpr int cp = 4;
  static constexpr Heads heads{.q = 64, .kv = 8};
  static constexpr double flops = 600e12;
  static constexpr double link_bytes_per_s = 50e9;
  static constexpr double length = flops / link_bytes_per_s * 2 * heads.kv / heads.q;  // 3000

  static double transfer_ms(int64_t c) {
    return 1e3 * static_cast<double>(c * heads.kv_token_bytes()) / link_bytes_per_s;
  }
  // Of the first ring step, whose diagonals are c / 2 more pairs.
  static double compute_ms(int64_t c) {
    return 1e3 * static_cast<double>(int64_t{2} * 128 * heads.q * c * (c + 1)) / flops;
  }
  // Arithmetic and links alone: memory is free.
  static std::vector<RingStepRecord> ring_at(int64_t c) {
    ClusterSpec cluster = toy_cluster(cp);
    cluster.device.peak_flops[MathType::bf16] = flops;
    cluster.device.memory_bytes_per_s = 1e18;
    cluster.node.link.bytes_per_s = link_bytes_per_s;
    RunConfig config = prefill(model_file(heads), cp, cp * c, CpPlacement::zigzag);
    config.kv_block_size = 10;  // so that all 2 cp runs of blocks are of c / 2 tokens
    return phase(simulate(config, cluster), Phase::prefill).ring;
  }
  // Of the first ring step, in which all ranks start together: each is blocked until its own tokens
  // have left.
  static double exposed_ms(int64_t c) { return std::max(0.0, transfer_ms(c) - compute_ms(c)); }
  // Rank 0's last tokens are seen by no other rank and are not sent: rank 1 receives half.
  static double moved_ms(int64_t c) {
    const double half = std::min(transfer_ms(c) / 2, compute_ms(c)) + exposed_ms(c);
    return ((cp - 1) * transfer_ms(c) + half) / cp;
  }
};

TEST_F(HiddenTransfers, from_the_length_of_the_formula) {
  const auto c = static_cast<int64_t>(length);
  ASSERT_EQ(c, 3000);
  for (const int64_t tokens : {c / 2, c * 98 / 100, c, c * 102 / 100, 2 * c}) {
    const std::vector<RingStepRecord> ring = ring_at(tokens);
    ASSERT_EQ(ring.size(), size_t{cp});
    constexpr double tolerance_ms = 1e-5;  // stamps are whole nanoseconds
    EXPECT_NEAR(ring[0].compute_ms, compute_ms(tokens), tolerance_ms) << tokens;
    EXPECT_NEAR(ring[0].transfer_ms, moved_ms(tokens), tolerance_ms) << tokens;
    EXPECT_NEAR(ring[0].exposed_ms, exposed_ms(tokens), tolerance_ms) << tokens;
    EXPECT_EQ(ring[cp - 1].sent_bytes, 0);
    for (size_t s = 0; s + 1 < ring.size(); ++s) {
      EXPECT_EQ(ring[s].sent_bytes, tokens * heads.kv_token_bytes());
      EXPECT_NEAR(ring[s].hidden_ms + ring[s].exposed_ms, ring[s].transfer_ms, 1e-9);
      if (tokens >= c) {
        EXPECT_NEAR(ring[s].exposed_ms, 0.0, tolerance_ms) << tokens;
      } else {
        EXPECT_GT(ring[s].exposed_ms, 0.0) << tokens;
      }
    }
  }
}

// The formula knows products alone. A real device also reads q and writes f32 partial results, and
// its link's rate for messages is calibrated: the first hides more, the second takes longer.
TEST_F(HiddenTransfers, on_h100_whose_links_are_50_gb_s) {
  RunConfig config = prefill("llama3-70b", cp, 0, CpPlacement::zigzag);
  config.cluster.link_gb_s = 50;
  const auto exposed_share = [&](int64_t c) {
    config.workload.prompt_tokens = cp * c;
    config.max_step_tokens = cp * c;
    config.model = model_file(heads);
    const SimulatedRun run = simulate(config, read_cluster("dgx-h100"));
    double exposed = 0.0;
    double transfer = 0.0;
    for (const RingStepRecord& step : phase(run, Phase::prefill).ring) {
      exposed += step.exposed_ms;
      transfer += step.transfer_ms;
    }
    return exposed / transfer;
  };
  const double at_length = exposed_share(3008);  // whole runs of 16-token blocks
  const double at_quarter = exposed_share(752);
  EXPECT_LT(at_length, 0.05);
  EXPECT_GT(at_quarter, 0.25);
  std::cout << "exposed of transfers: " << at_length << " at 3008 tokens a rank, " << at_quarter
            << " at 752\n";
}

int64_t ring_sent_bytes(const SimulatedRun& run) {
  int64_t n_bytes = 0;
  for (const RankTimeline& timeline : run.timelines) {
    for (const CommEvent& event : timeline.comms) {
      if (event.comm.op == CommOp::send && event.comm.axis == Axis::cp) {
        n_bytes += event.comm.payload_bytes;
      }
    }
  }
  return n_bytes;
}

// In tokens times hops around a ring of n = 8, c = 2048 tokens a rank, runs of c / 2 under zigzag.
// No window, contiguous: rank r's block goes to the n - 1 - r ranks behind it: n (n - 1) / 2 * c.
//   Zigzag: each of the 2n runs but the last is seen by the rank before its owner, n - 1 hops:
//   (2n - 1)(n - 1) * c/2.
// A window of c tokens, contiguous: seen by the next rank alone: (n - 1) * c.
//   Zigzag: run j is seen by runs j + 1 and j + 2. Of the first half, whose owners ascend, n - 2 go
//   2 hops, run n - 2 goes 1; the other n, from run n - 1 to 2n - 2, are seen by ranks before
//   theirs and go n - 1: (2 (n - 2) + 1 + n (n - 1)) * c/2.
TEST(Windows, what_no_later_rank_sees_is_not_sent) {
  constexpr int64_t n = 8;
  constexpr int64_t c = 2048;
  const Heads heads{.q = 32, .kv = 8};
  const ClusterSpec cluster = read_cluster("dgx-h100");
  const auto token_hops = [&](int64_t window, CpPlacement placement) {
    const RunConfig config = prefill(model_file(heads, window), n, n * c, placement);
    return ring_sent_bytes(simulate(config, cluster)) / heads.kv_token_bytes();
  };
  EXPECT_EQ(token_hops(0, CpPlacement::contiguous), n * (n - 1) / 2 * c);
  EXPECT_EQ(token_hops(0, CpPlacement::zigzag), (2 * n - 1) * (n - 1) * c / 2);
  EXPECT_EQ(token_hops(c, CpPlacement::contiguous), (n - 1) * c);
  EXPECT_EQ(token_hops(c, CpPlacement::zigzag), (2 * (n - 2) + 1 + n * (n - 1)) * c / 2);
}

TEST(Decode, over_cp_reads_its_share_of_the_kv_and_all_weights) {
  constexpr int cp = 4;
  RunConfig config;
  config.model = "llama3-8b";
  config.layers = 2;
  config.parallel.cp = cp;
  config.workload = {.batch = 1, .prompt_tokens = 1, .gen_tokens = 9, .context = 8000};
  const ClusterSpec cluster = read_cluster("dgx-h100");
  const SimulatedRun split = simulate(config, cluster);
  config.parallel.cp = 1;
  const SimulatedRun whole = simulate(config, cluster);
  const DevicePhaseRecord& alone = phase(whole, Phase::decode).per_device.front();
  const int64_t block_bytes =
      config.kv_block_size * *config.layers * Heads{.q = 32, .kv = 8}.kv_token_bytes();
  const std::vector<DevicePhaseRecord>& devices = phase(split, Phase::decode).per_device;
  ASSERT_EQ(devices.size(), size_t{cp});
  int64_t sum = 0;
  for (const DevicePhaseRecord& device : devices) {
    EXPECT_LE(std::abs(device.kv_bytes - alone.kv_bytes / cp), block_bytes) << device.rank;
    EXPECT_EQ(device.weight_bytes, alone.weight_bytes) << device.rank;
    sum += device.kv_bytes;
  }
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(alone.kv_bytes), cp);  // rounded means
}

}  // namespace
}  // namespace testbed
