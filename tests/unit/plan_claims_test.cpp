// Every figure of the list of claims, section by section, and the committed table.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <sstream>

#include "runtime/config/dense_peaks.hpp"
#include "runtime/plan/claims.hpp"

namespace testbed::plan {
namespace {

const ClaimInputs& inputs() {
  static const ClaimInputs read = read_claim_inputs();
  return read;
}

// A claim that is wrong, by its text and figure, and the figure that is right.
struct Wrong {
  std::string_view text;
  std::string_view said;
  std::string_view right;
};

// Every claim of the row holds as it is said, but for these.
void expect_row(std::string_view row, const std::vector<Wrong>& wrongs = {}) {
  const std::vector<Claim> claims = all_claims();
  size_t n_of_row = 0;
  size_t n_wrong = 0;
  for (const Claim& claim : claims) {
    if (claim.row != row) continue;
    ++n_of_row;
    const RecomputedClaim result = recomputed(claim, inputs());
    const auto wrong = std::find_if(wrongs.begin(), wrongs.end(), [&](const Wrong& w) {
      return w.text == claim.text && w.said == claim.circulating;
    });
    if (wrong == wrongs.end()) {
      EXPECT_TRUE(result.holds) << claim.text << ": said " << claim.circulating << ", is "
                                << result.value;
      continue;
    }
    ++n_wrong;
    EXPECT_FALSE(result.holds) << claim.text;
    Claim corrected = claim;
    corrected.circulating = wrong->right;
    EXPECT_TRUE(recomputed(corrected, inputs()).holds)
        << claim.text << ": right is " << wrong->right << ", is " << result.value;
  }
  EXPECT_GT(n_of_row, 0U) << row;
  EXPECT_EQ(n_wrong, wrongs.size()) << row;
}

TEST(Arithmetic, ridge) { expect_row("Ridge"); }

TEST(Arithmetic, dense_peak) { expect_row("Dense peak", {{"H100 SXM, bf16", "1979", "989"}}); }

// 1,979 is judged by dtype: the dense peak in FP8, sparse in bf16.
TEST(Arithmetic, sparse_peak_is_refused) {
  const DeviceSpec& h100 = inputs().h100;
  std::map<MathType, double> peaks = h100.peak_flops;
  EXPECT_EQ(dense_peak_error(h100.chip, peaks, MathType::fp8), "");
  EXPECT_EQ(dense_peak_error(h100.chip, peaks, MathType::bf16), "");
  peaks[MathType::bf16] = 1979e12;
  EXPECT_NE(dense_peak_error(h100.chip, peaks, MathType::bf16), "");
}

TEST(Arithmetic, llama_70b_at_batch_1) { expect_row("70 B at batch 1"); }
TEST(Arithmetic, arithmetic_against_reading) { expect_row("Arithmetic against reading"); }
TEST(Arithmetic, batch_1_uses) { expect_row("Batch 1 uses"); }
TEST(Arithmetic, mfu_and_mbu) { expect_row("25 tokens/s of an 8-bit 70 B"); }

TEST(Arithmetic, intensity_of_decode) {
  expect_row("Intensity of decode", {{"4-bit weights against 16-bit", "4.0", "3.6"}});
}

TEST(Arithmetic, compute_bound_batch) {
  expect_row("Decode turns compute-bound",
             {{"H100, bf16, no KV cache", "512", "295"},
              {"the same at 2k, by what is multiplied", "218", "215"},
              {"the same at 8k, by what is multiplied", "61", "60"}});
}

TEST(Arithmetic, batch_64) { expect_row("Batch 64 gives", {{"as sometimes said", "65", "64"}}); }

TEST(Arithmetic, gemm) { expect_row("GEMM of M tokens"); }
TEST(Arithmetic, operations_per_byte) { expect_row("Operations per byte"); }
TEST(Arithmetic, vector_add) { expect_row("Vector add"); }

TEST(Arithmetic, kv_bytes) {
  expect_row("KV bytes", {{"Llama-2-70B at 4096 tokens", "10.7", "1.3"}});
}

TEST(Arithmetic, what_fits) {
  expect_row("What fits one H100", {{"left beside 8-bit weights", "14.2", "14.3"}});
}

TEST(Arithmetic, windows) { expect_row("Windows"); }
TEST(Arithmetic, shared_k_and_v) {
  expect_row("One cache for K and V",
             {{"gemma4-26b-a4b's full layers (K = V), cached as keys and values", "2", "1"}});
}

TEST(Arithmetic, mla) {
  expect_row("MLA saves",
             {{"DeepSeek-V2 (69,120 B a token) against DeepSeek 67B (GQA, 389,120 B), both bf16",
               "93",
               "82"},
              {"against its own 128 heads of 128 as MHA (3,932,160 B), both bf16", "93", "98"}});
}

TEST(Arithmetic, moe) {
  expect_row("MoE, 26 B with 4 B active",
             {{"fewer bytes at batch 32, 128 experts, top-8", "6.5", "1.1"},
              {"all weights in 8 bits, as sometimes written", "24.2", "26.0"}});
}

// The preset is smaller than its name.
TEST(Arithmetic, moe_preset) {
  expect_row("MoE, gemma4-26b-a4b as it is",
             {{"parameters", "26", "25.2"},
              {"weights in 8 bits, all", "24.2", "23.5"},
              {"weights in 8 bits that a token reads", "3.7", "3.6"},
              {"fewer bytes at batch 1", "6.5", "6.6"},
              {"all weights read by an H100", "7.8", "7.5"},
              {"a token's weights read by an H100", "1.2", "1.1"},
              {"fewer bytes at batch 32", "6.5", "1.1"}});
}

TEST(Arithmetic, attention) {
  expect_row("Attention", {{"flash: accesses when the sequence doubles", "2", "4"}});
}
TEST(Arithmetic, tp_all_reduce) { expect_row("All-reduce of tensor parallelism"); }

TEST(Arithmetic, bubble) {
  expect_row("Pipeline bubble",
             {{"4 stages, 8 microbatches, decode that is not drained", "27", "0"}});
}

TEST(Arithmetic, link_hierarchy) {
  expect_row("Hierarchy of links, H100, one direction", {{"HBM against NVLink", "3.7", "7.4"}});
}

TEST(Arithmetic, all_reduce_1_gib) { expect_row("All-reduce of 1 GiB over 8 H100"); }
TEST(Arithmetic, training) { expect_row("Training with Adam"); }
TEST(Arithmetic, growth) { expect_row("Growth per two years"); }
TEST(Arithmetic, coalescing_and_divergence) { expect_row("Coalescing and divergence"); }
TEST(Arithmetic, residency) { expect_row("Residency, H100 SXM"); }

TEST(Claims, committed_table_is_what_the_command_writes) {
  std::ifstream file(std::string(TESTBED_SOURCE_DIR) + "/docs/claims.md");
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), claims_markdown(all_claims(), inputs()))
      << "write it again: testbed plan --claims docs/claims.md";
}

TEST(Claims, figure_is_compared_at_its_own_digits) {
  const auto holds = [](std::string_view said, double value, double step = 0.0) {
    const Claim claim{.row = "row",
                      .text = "text",
                      .circulating = said,
                      .unit = "",
                      .recompute = [value](const ClaimInputs&) { return value; },
                      .note = "",
                      .step = step};
    return recomputed(claim, inputs()).holds;
  };
  const double never = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(holds("295", 295.49));
  EXPECT_FALSE(holds("295", 295.51));
  EXPECT_TRUE(holds("0.65", 0.6549));
  EXPECT_FALSE(holds("0.65", 0.656));
  EXPECT_TRUE(holds("1500", 1477, 100.0));
  EXPECT_TRUE(holds("never", never));
  EXPECT_FALSE(holds("never", 295.0));
  EXPECT_FALSE(holds("295", never));
}

// A wrong preset must change what is said.
TEST(Claims, verdicts_follow_the_presets) {
  ClaimInputs slower = inputs();
  slower.h100.memory_bytes_per_s /= 2.0;
  size_t n_changed = 0;
  for (const Claim& claim : roofline_claims()) {
    n_changed += recomputed(claim, inputs()).holds && !recomputed(claim, slower).holds ? 1 : 0;
  }
  EXPECT_GE(n_changed, 4U);
}

}  // namespace
}  // namespace testbed::plan
