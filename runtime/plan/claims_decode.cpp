// Claims: decoding a 70 B model.
#include <cmath>
#include <limits>

#include "runtime/plan/batch_limit.hpp"
#include "runtime/plan/claims.hpp"
#include "runtime/plan/roofline.hpp"

namespace testbed::plan {
namespace {

using In = const ClaimInputs&;

constexpr double nominal_70b = 70e9;
constexpr StepFormats bf16_formats{bf16_format, DType::BF16};
constexpr StepFormats int8_formats{int8_format, DType::BF16};
constexpr StepFormats fp8_formats{fp8_format, DType::BF16};

double parameters(In in) { return static_cast<double>(in.llama3_70b.n_parameters()); }
double read_ms(In in, double n_bytes) { return n_bytes / in.h100.memory_bytes_per_s * 1e3; }
// Weights that a decode pass reads.
double weights_read(In in, const StepFormats& formats) {
  return decode_pass(in.llama3_70b, 1, formats).weight_bytes;
}
double fp8_arithmetic_ms(In in) {
  return 2.0 * parameters(in) / in.h100.peak_flops.at(MathType::fp8) * 1e3;
}
double eight_bit_read_ms(In in) {
  return read_ms(in, parameters(in) * int8_format.bytes_per_value);
}

double bf16_ridge(In in) { return roof_of(in.h100, MathType::bf16).ridge(); }

// B*; infinite: never.
double limit(const DecodePass& pass, double ridge) {
  return compute_bound_batch(pass, ridge).value_or(std::numeric_limits<double>::infinity());
}
double weights_limit(In in, const StepFormats& formats, MathType math) {
  DecodePass pass = decode_pass(in.llama3_70b, 1, formats);
  pass.kv_bytes_per_sequence = 0.0;
  return limit(pass, roof_of(in.h100, math).ridge());
}
DecodePass at_context(In in, int64_t context) {
  return decode_pass(in.llama3_70b, context, bf16_formats);
}
// The embedding table counted as if it were multiplied: what 2 N FLOPs a token says.
DecodePass nominal_at_context(In in, int64_t context) {
  DecodePass pass = at_context(in, context);
  pass.flops_per_sequence +=
      2.0 * static_cast<double>(in.llama3_70b.vocab_size * in.llama3_70b.d_model);
  return pass;
}
double longest_bound(In in) {
  const auto pass = [&in](int64_t context) { return at_context(in, context); };
  return static_cast<double>(context_limit(pass, bf16_ridge(in)).value());
}

double batch_gain(In in, double batch, int64_t context) {
  const DecodePass pass = decode_pass(in.llama3_70b, context, int8_formats);
  const Roof roof = roof_of(in.h100, MathType::bf16);
  return pass.tokens_per_s(batch, roof) / pass.tokens_per_s(1.0, roof);
}

void say_batch_1(const Say& say) {
  const std::string_view row = "70 B at batch 1";
  say({row, "parameters of llama3-70b", "70553706496", "", parameters});
  say({row, "nominal 70 B in bf16", "140", "GB", [](In) { return nominal_70b * 2e-9; }});
  say({row, "nominal 70 B in bf16 on an H100, reading", "41.8", "ms", [](In in) {
         return read_ms(in, nominal_70b * 2.0);
       }});
  say({row,
       "nominal 70 B in bf16 on an H100",
       "23.9",
       "tokens/s",
       [](In in) { return 1e3 / read_ms(in, nominal_70b * 2.0); },
       "the ceiling of its bandwidth; in bf16 it does not fit one H100"});
  say({row,
       "llama3-70b in bf16, what a pass reads",
       "139.0",
       "GB",
       [](In in) { return weights_read(in, bf16_formats) * 1e-9; },
       "the embedding table is not read"});
  say({row, "llama3-70b in bf16 on an H100, reading", "41.5", "ms", [](In in) {
         return read_ms(in, weights_read(in, bf16_formats));
       }});
  say({row, "llama3-70b in bf16 on an H100", "24.1", "tokens/s", [](In in) {
         return 1e3 / read_ms(in, weights_read(in, bf16_formats));
       }});
  say({row, "llama3-70b in 8 bits, all parameters", "70.6", "GB", [](In in) {
         return parameters(in) * int8_format.bytes_per_value * 1e-9;
       }});
  say({row, "llama3-70b in 8 bits on an H100, all parameters", "21.1", "ms", eight_bit_read_ms});
  say({row, "llama3-70b in 8 bits on an H100, what a pass reads", "20.7", "ms", [](In in) {
         return read_ms(in, weights_read(in, int8_formats));
       }});
}

void say_waiting(const Say& say) {
  const std::string_view row = "Arithmetic against reading";
  say({row,
       "8-bit 70 B on an H100: arithmetic of a token in FP8",
       "0.071",
       "ms",
       fp8_arithmetic_ms});
  say({row, "share of the time spent waiting for weights", "99.7", "%", [](In in) {
         return 100.0 * (1.0 - fp8_arithmetic_ms(in) / eight_bit_read_ms(in));
       }});
  say({row, "reading against arithmetic", "295", "x", [](In in) {
         return eight_bit_read_ms(in) / fp8_arithmetic_ms(in);
       }});
}

void say_25_tokens_per_s(const Say& say) {
  const std::string_view row = "25 tokens/s of an 8-bit 70 B";
  say({row, "MFU of an H100's FP8 peak", "0.18", "%", [](In in) {
         return 100.0 * 25.0 * fp8_arithmetic_ms(in) * 1e-3;
       }});
  say({row,
       "MBU of an H100",
       "52.7",
       "%",
       [](In in) { return 100.0 * 25.0 * eight_bit_read_ms(in) * 1e-3; },
       "nominal: all parameters"});
}

void say_compute_bound(const Say& say) {
  const std::string_view row = "Decode turns compute-bound";
  const std::string_view batch = "sequences";
  say({row, "H100, bf16 weights, bf16 arithmetic, no KV cache", "295", batch, [](In in) {
         return weights_limit(in, bf16_formats, MathType::bf16);
       }});
  say({row, "H100, fp8 weights, fp8 arithmetic, no KV cache", "295", batch, [](In in) {
         return weights_limit(in, fp8_formats, MathType::fp8);
       }});
  say({row, "H100, 8-bit weights, 16-bit arithmetic, no KV cache", "148", batch, [](In in) {
         return weights_limit(in, int8_formats, MathType::bf16);
       }});
  say({row,
       "H100, bf16, no KV cache",
       "512",
       batch,
       [](In in) { return weights_limit(in, bf16_formats, MathType::bf16); },
       "512 is the next power of two"});
  say({row,
       "H100, bf16, llama3-70b with its KV cache: longest context at which it does",
       "1500",
       "tokens",
       longest_bound,
       "about; beyond it, at no batch",
       100.0});
  say({row,
       "with its KV cache at 2k of context",
       "never",
       batch,
       [](In in) { return limit(at_context(in, 2 << 10), bf16_ridge(in)); },
       "half the KV bytes (fp8), one KV head (MQA) or MLA's latent would restore it"});
  say({row,
       "with its KV cache at 8k of context",
       "never",
       batch,
       [](In in) { return limit(at_context(in, 8 << 10), bf16_ridge(in)); },
       "one KV head (MQA) or MLA's latent would restore it, half the KV bytes would not"});
  say({row,
       "limit of the intensity at 2k of context",
       "218",
       "FLOP/byte",
       [](In in) { return nominal_at_context(in, 2 << 10).intensity_limit(); },
       "nominal: 2 FLOPs for every parameter"});
  say({row,
       "limit of the intensity at 8k of context",
       "61",
       "FLOP/byte",
       [](In in) { return nominal_at_context(in, 8 << 10).intensity_limit(); },
       "nominal: 2 FLOPs for every parameter"});
  say({row,
       "the same at 2k, by what is multiplied",
       "218",
       "FLOP/byte",
       [](In in) { return at_context(in, 2 << 10).intensity_limit(); },
       "the embedding table is not multiplied"});
  say({row,
       "the same at 8k, by what is multiplied",
       "61",
       "FLOP/byte",
       [](In in) { return at_context(in, 8 << 10).intensity_limit(); },
       "the embedding table is not multiplied"});
}

void say_batch_64(const Say& say) {
  const std::string_view row = "Batch 64 gives";
  say({row,
       "weights alone",
       "64",
       "x",
       [](In in) {
         DecodePass pass = decode_pass(in.llama3_70b, 1, int8_formats);
         pass.kv_bytes_per_sequence = 0.0;
         const Roof roof = roof_of(in.h100, MathType::bf16);
         return pass.tokens_per_s(64.0, roof) / pass.tokens_per_s(1.0, roof);
       },
       "at most"});
  say({row,
       "as sometimes said",
       "65",
       "x",
       [](In in) { return batch_gain(in, 64.0, 1); },
       "at most 64"});
  say({row, "llama3-70b on an H100, 8-bit weights, bf16 KV at 1k of context", "49", "x", [](In in) {
         return batch_gain(in, 64.0, 1 << 10);
       }});
  say({row, "llama3-70b on an H100, 8-bit weights, bf16 KV at 8k of context", "19", "x", [](In in) {
         return batch_gain(in, 64.0, 8 << 10);
       }});
}

}  // namespace

std::vector<Claim> decode_claims() {
  std::vector<Claim> claims;
  const Say say = [&claims](Claim claim) { claims.push_back(std::move(claim)); };
  say_batch_1(say);
  say_waiting(say);
  say_25_tokens_per_s(say);
  say_compute_bound(say);
  say_batch_64(say);
  return claims;
}

}  // namespace testbed::plan
