// Claims: mixture of experts.
#include "runtime/plan/batch_limit.hpp"
#include "runtime/plan/claims.hpp"
#include "runtime/plan/moe.hpp"

namespace testbed::plan {
namespace {

using In = const ClaimInputs&;

constexpr double gib = 1024.0 * 1024.0 * 1024.0;
constexpr StepFormats int8_formats{int8_format, DType::BF16};

constexpr double moe_all = 26e9;
constexpr double moe_active = 4e9;
// 8-bit weights read by a batch: of 128 experts 8 per token, and what every token reads.
double nominal_bytes(double batch) {
  constexpr double per_expert = (moe_all - moe_active) / (128 - 8);
  return moe_weight_bytes(moe_all - 128.0 * per_expert, per_expert, 128, 8, batch);
}
double h100_ms(In in, double n_bytes) { return n_bytes / in.h100.memory_bytes_per_s * 1e3; }

// The preset's weights in 8 bits: what a decode pass reads, and what it would read of all experts.
DecodePass gemma4_pass(In in) { return decode_pass(in.gemma4_26b_a4b, 1, int8_formats); }
double gemma4_read(In in, double batch) { return gemma4_pass(in).weights_read(batch); }
double gemma4_all(In in) {
  const DecodePass pass = gemma4_pass(in);
  return pass.weight_bytes + pass.expert_bytes;
}

void say_nominal(const Say& say) {
  const std::string_view row = "MoE, 26 B with 4 B active";
  say({row, "fewer bytes at batch 1", "6.5", "x", [](In) { return moe_all / moe_active; }});
  say({row,
       "all weights in 8 bits, as sometimes written",
       "24.2",
       "GB",
       [](In) { return moe_all * 1e-9; },
       "24.2 is GiB"});
  say({row, "all weights in 8 bits", "24.2", "GiB", [](In) { return moe_all / gib; }});
  say({row, "active weights in 8 bits", "3.7", "GiB", [](In) { return moe_active / gib; }});
  say({row, "all weights read by an H100", "7.8", "ms", [](In in) {
         return h100_ms(in, moe_all);
       }});
  say({row, "active weights read by an H100", "1.2", "ms", [](In in) {
         return h100_ms(in, moe_active);
       }});
  say({row,
       "fewer bytes at batch 32, 128 experts, top-8",
       "6.5",
       "x",
       [](In) { return moe_all / nominal_bytes(32.0); },
       "the batch touches most experts"});
  say({row,
       "of 128 experts, top-8, that batch 32 reads",
       "87",
       "%",
       [](In) { return 100.0 * expected_experts(128, 8, 32.0) / 128.0; },
       "uniform and independent routing"});
}

void say_gemma4(const Say& say) {
  const std::string_view row = "MoE, gemma4-26b-a4b as it is";
  say({row,
       "parameters",
       "26",
       "G",
       [](In in) { return static_cast<double>(in.gemma4_26b_a4b.n_parameters()) * 1e-9; },
       "what its name says"});
  say({row,
       "active parameters",
       "4",
       "G",
       [](In in) { return static_cast<double>(in.gemma4_26b_a4b.n_active_parameters()) * 1e-9; },
       "experts not chosen and the embedding's rows left out"});
  say({row, "weights in 8 bits, all", "24.2", "GiB", [](In in) { return gemma4_all(in) / gib; }});
  say({row, "weights in 8 bits that a token reads", "3.7", "GiB", [](In in) {
         return gemma4_read(in, 1.0) / gib;
       }});
  say({row, "fewer bytes at batch 1", "6.5", "x", [](In in) {
         return gemma4_all(in) / gemma4_read(in, 1.0);
       }});
  say({row, "all weights read by an H100", "7.8", "ms", [](In in) {
         return h100_ms(in, gemma4_all(in));
       }});
  say({row, "a token's weights read by an H100", "1.2", "ms", [](In in) {
         return h100_ms(in, gemma4_read(in, 1.0));
       }});
  say({row,
       "fewer bytes at batch 32",
       "6.5",
       "x",
       [](In in) { return gemma4_all(in) / gemma4_read(in, 32.0); },
       "87 % of the experts are touched"});
}

}  // namespace

std::vector<Claim> expert_claims() {
  std::vector<Claim> claims;
  const Say say = [&claims](Claim claim) { claims.push_back(std::move(claim)); };
  say_nominal(say);
  say_gemma4(say);
  return claims;
}

}  // namespace testbed::plan
