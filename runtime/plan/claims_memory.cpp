// Claims: KV caches, what fits, experts.
#include <cmath>

#include "runtime/plan/claims.hpp"
#include "runtime/plan/fits.hpp"
#include "runtime/plan/kv.hpp"
#include "runtime/plan/moe.hpp"

namespace testbed::plan {
namespace {

using In = const ClaimInputs&;

constexpr double kib = 1024.0;
constexpr double gib = 1024.0 * 1024.0 * 1024.0;
constexpr int64_t tokens_128k = 128 << 10;
constexpr StepFormats int8_formats{int8_format, DType::BF16};

double kv_token(const ModelConfig& model) {
  return static_cast<double>(kv_bytes_per_token(model, DType::BF16));
}
double kv_cache(const ModelConfig& model, int64_t context) {
  return static_cast<double>(kv_bytes_of_sequence(model, context, DType::BF16));
}
ModelConfig mha(const ModelConfig& model) { return with_kv_heads(model, model.n_heads); }

double weights_gib(In in, const NumberFormat& format) {
  return static_cast<double>(resident_weight_bytes(in.llama3_70b, {}, format)) / gib;
}
double left_gib(In in) {
  return static_cast<double>(in.h100.memory_bytes) / gib - weights_gib(in, int8_format);
}
double users(In in, int64_t context) {
  return static_cast<double>(
      users_of(in.llama3_70b, {}, int8_formats, in.h100.memory_bytes, context));
}

// Full cache against windowed, of n_layers; heads cancel out, so those of any model do.
double window_saving(In in, int64_t n_layers, int64_t n_windowed, int64_t window, int64_t context) {
  ModelConfig model = in.llama3_70b;
  model.n_layers = n_layers;
  model.layer_windows.assign(static_cast<size_t>(n_layers), 0);
  return kv_cache(model, context) / kv_cache(with_windows(model, n_windowed, window), context);
}

// DeepSeek-V2 (arXiv:2405.04434): 60 layers, 128 heads of 128, latent 512 + 64. DeepSeek 67B: 95
// layers, 8 KV heads of 128.
double mla_token() { return static_cast<double>(mla_bytes_per_token(60, 512, 64, DType::BF16)); }
double saved_percent(double less, double more) { return 100.0 * (1.0 - less / more); }
double heads_token(In in, int64_t n_layers, int64_t n_kv_heads) {
  ModelConfig model = in.llama3_70b;
  model.n_layers = n_layers;
  model.n_kv_heads = n_kv_heads;
  model.head_dim = 128;
  return kv_token(model);
}

constexpr double moe_all = 26e9;
constexpr double moe_active = 4e9;
// 8-bit weights read by a batch: of 128 experts 8 per token, and what every token reads.
double moe_bytes(double batch) {
  constexpr double per_expert = (moe_all - moe_active) / (128 - 8);
  return moe_weight_bytes(moe_all - 128.0 * per_expert, per_expert, 128, 8, batch);
}
double h100_ms(In in, double n_bytes) { return n_bytes / in.h100.memory_bytes_per_s * 1e3; }

void say_kv(const Say& say) {
  const std::string_view row = "KV bytes";
  say({row,
       "llama3-70b, a token",
       "320",
       "KiB",
       [](In in) { return kv_token(in.llama3_70b) / kib; },
       "327,680 B"});
  say({row, "llama3-70b, 32,768 tokens x 8 users", "80", "GiB", [](In in) {
         return 8.0 * kv_cache(in.llama3_70b, 32768) / gib;
       }});
  say({row, "llama3-70b, 128k tokens", "40", "GiB", [](In in) {
         return kv_cache(in.llama3_70b, tokens_128k) / gib;
       }});
  say({row, "llama3-70b if it were MHA, a token", "2560", "KiB", [](In in) {
         return kv_token(mha(in.llama3_70b)) / kib;
       }});
  say({row, "llama3-70b if it were MHA, 128k tokens", "320", "GiB", [](In in) {
         return kv_cache(mha(in.llama3_70b), tokens_128k) / gib;
       }});
  say({row,
       "of what 8 x H100 leave after bf16 weights",
       "63",
       "%",
       [](In in) {
         const double left =
             8.0 * static_cast<double>(in.h100.memory_bytes) / gib - weights_gib(in, bf16_format);
         return 100.0 * kv_cache(mha(in.llama3_70b), tokens_128k) / gib / left;
       },
       "it fits"});
  say({row,
       "Llama-2-70B at 4096 tokens",
       "10.7",
       "GB",
       [](In in) { return kv_cache(in.llama2_70b, 4096) * 1e-9; },
       "that would be MHA; it is GQA"});
  say({row, "Llama-2-70B at 4096 tokens, if it were MHA", "10.7", "GB", [](In in) {
         return kv_cache(mha(in.llama2_70b), 4096) * 1e-9;
       }});
  say({row, "Llama-2-70B at 4096 tokens, GQA", "1.34", "GB", [](In in) {
         return kv_cache(in.llama2_70b, 4096) * 1e-9;
       }});
}

void say_fits(const Say& say) {
  const std::string_view row = "What fits one H100";
  say({row, "llama3-70b in bf16", "131.4", "GiB", [](In in) {
         return weights_gib(in, bf16_format);
       }});
  say({row,
       "llama3-70b in bf16: cards",
       "2",
       "cards",
       [](In in) {
         return static_cast<double>(cards_needed(weights_gib(in, bf16_format) * gib,
                                                 static_cast<double>(in.h100.memory_bytes)));
       },
       "for the weights alone"});
  say({row,
       "left beside 8-bit weights",
       "14.2",
       "GiB",
       left_gib,
       "rounded down; to the nearest it is 14.3"});
  say({row, "conversations of 8k beside 8-bit weights", "5", "users", [](In in) {
         return users(in, 8 << 10);
       }});
  say({row, "conversations of 128k beside 8-bit weights", "0", "users", [](In in) {
         return users(in, tokens_128k);
       }});
  say({row, "freed by going from 16 to 8 bits", "65.7", "GiB", [](In in) {
         return weights_gib(in, bf16_format) - weights_gib(in, int8_format);
       }});
}

void say_smaller_caches(const Say& say) {
  std::string_view row = "Windows";
  say({row,
       "Gemma 2 (1:1, 4096) at 128k",
       "1.9",
       "x",
       [](In in) { return window_saving(in, 2, 1, 4096, tokens_128k); },
       "beyond its own maximum of 8k"});
  say({row, "Gemma 2 at its 8k maximum", "1.3", "x", [](In in) {
         return window_saving(in, 2, 1, 4096, 8 << 10);
       }});
  say({row, "Gemma 3 (5:1, 1024) at 128k, by pattern", "5.8", "x", [](In in) {
         return window_saving(in, 6, 5, 1024, tokens_128k);
       }});
  say({row, "Gemma 3 27B (62 layers, 10 of them full) at 128k", "6.0", "x", [](In in) {
         return window_saving(in, 62, 5, 1024, tokens_128k);
       }});

  row = "One cache for K and V";
  say({row,
       "sharing K = V saves",
       "2",
       "x",
       [](In in) {
         const ModelConfig& m = in.llama3_70b;
         return kv_token(m) / static_cast<double>(
                                  m.n_layers * dtype_bytes(DType::BF16, m.n_kv_heads * m.head_dim));
       },
       "only if the raw key projection is cached: V is taken before norm and rope"});

  row = "MLA saves";
  say({row,
       "DeepSeek-V2 (69,120 B a token) against DeepSeek 67B (GQA, 389,120 B), both bf16",
       "93",
       "%",
       [](In in) { return saved_percent(mla_token(), heads_token(in, 95, 8)); }});
  say({row,
       "the same with V2's cache in 6 bits (25,920 B), as its paper counts",
       "93.3",
       "%",
       [](In in) { return saved_percent(mla_token() * 6.0 / 16.0, heads_token(in, 95, 8)); }});
  say({row, "against its own 128 heads as MHA (3,932,160 B), both bf16", "93", "%", [](In in) {
         return saved_percent(mla_token(), heads_token(in, 60, 128));
       }});
}

void say_moe(const Say& say) {
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
       [](In) { return moe_all / moe_bytes(32.0); },
       "the batch touches most experts"});
  say({row,
       "of 128 experts, top-8, that batch 32 reads",
       "87",
       "%",
       [](In) { return 100.0 * expected_experts(128, 8, 32.0) / 128.0; },
       "uniform and independent routing"});
}

}  // namespace

std::vector<Claim> memory_claims() {
  std::vector<Claim> claims;
  const Say say = [&claims](Claim claim) { claims.push_back(std::move(claim)); };
  say_kv(say);
  say_fits(say);
  say_smaller_caches(say);
  say_moe(say);
  return claims;
}

}  // namespace testbed::plan
