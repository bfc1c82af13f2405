// Claims: KV caches, what fits.
#include "runtime/plan/claims.hpp"
#include "runtime/plan/fits.hpp"
#include "runtime/plan/kv.hpp"

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

// Full cache against windowed, of the model's own layers.
double window_saving(const ModelConfig& model, int64_t context) {
  return static_cast<double>(context) * kv_token(model) / kv_cache(model, context);
}
// The same of a pattern that repeats without end; heads cancel out, so those of any model do.
double pattern_saving(In in, int64_t n_windowed, int64_t window, int64_t context) {
  ModelConfig model = in.llama3_70b;
  model.n_layers = n_windowed + 1;
  model.layer_windows.assign(static_cast<size_t>(model.n_layers), 0);
  return window_saving(with_windows(model, n_windowed, window), context);
}

// Keys and values of one head, against what the last layer caches of them.
double shared_kv_saving(const ModelConfig& model) {
  const CachedShape cached = model.cached(model.n_layers - 1);
  return static_cast<double>(2 * cached.n_heads * cached.k_dim) /
         static_cast<double>(cached.elements());
}

// DeepSeek 67B, against which V2's paper compares: 95 layers, 8 KV heads of 128.
double saved_percent(double less, double more) { return 100.0 * (1.0 - less / more); }
double heads_token(In in, int64_t n_layers, int64_t n_kv_heads) {
  ModelConfig model = in.llama3_70b;
  model.n_layers = n_layers;
  model.layer_windows.assign(static_cast<size_t>(n_layers), 0);
  model.n_heads = n_kv_heads;
  model.n_kv_heads = n_kv_heads;
  model.head_dim = 128;
  return kv_token(model);
}

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

void say_windows(const Say& say) {
  const std::string_view row = "Windows";
  say({row,
       "Gemma 2 27B (23 of 46 layers see 4096) at 128k",
       "1.9",
       "x",
       [](In in) { return window_saving(in.gemma2_27b, tokens_128k); },
       "beyond its own maximum of 8k"});
  say({row, "Gemma 2 27B at its 8k maximum", "1.3", "x", [](In in) {
         return window_saving(in.gemma2_27b, 8 << 10);
       }});
  say({row, "Gemma 3 (5:1, 1024) at 128k, by pattern", "5.8", "x", [](In in) {
         return pattern_saving(in, 5, 1024, tokens_128k);
       }});
  say({row, "Gemma 3 27B (62 layers, 10 of them full) at 128k", "6.0", "x", [](In in) {
         return window_saving(in.gemma3_27b, tokens_128k);
       }});
}

void say_shared_values(const Say& say) {
  const std::string_view row = "One cache for K and V";
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
  say({row,
       "gemma4-26b-a4b's full layers (K = V), cached as keys and values",
       "2",
       "x",
       [](In in) { return shared_kv_saving(in.gemma4_26b_a4b); },
       "keys are cached normed and rotated, values raw: what is saved is the projection"});
}

void say_mla(const Say& say) {
  const std::string_view row = "MLA saves";
  say({row, "deepseek-v3, a token in bf16", "70272", "B", [](In in) {
         return kv_token(in.deepseek_v3);
       }});
  say({row,
       "DeepSeek-V2 (69,120 B a token) against DeepSeek 67B (GQA, 389,120 B), both bf16",
       "93",
       "%",
       [](In in) { return saved_percent(kv_token(in.deepseek_v2), heads_token(in, 95, 8)); }});
  say({row,
       "the same with V2's cache in 6 bits (25,920 B), as its paper counts",
       "93.3",
       "%",
       [](In in) {
         return saved_percent(kv_token(in.deepseek_v2) * 6.0 / 16.0, heads_token(in, 95, 8));
       }});
  say({row,
       "against its own 128 heads of 128 as MHA (3,932,160 B), both bf16",
       "93",
       "%",
       [](In in) {
         const ModelConfig& v2 = in.deepseek_v2;
         return saved_percent(kv_token(v2), heads_token(in, v2.n_layers, v2.n_heads));
       }});
}

}  // namespace

std::vector<Claim> memory_claims() {
  std::vector<Claim> claims;
  const Say say = [&claims](Claim claim) { claims.push_back(std::move(claim)); };
  say_kv(say);
  say_fits(say);
  say_windows(say);
  say_shared_values(say);
  say_mla(say);
  return claims;
}

}  // namespace testbed::plan
