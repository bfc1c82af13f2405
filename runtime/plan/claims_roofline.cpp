// Claims: ridges, peaks, intensities.
#include "kernels/cost.hpp"
#include "runtime/plan/claims.hpp"
#include "runtime/plan/formats.hpp"
#include "runtime/plan/roofline.hpp"

namespace testbed::plan {
namespace {

using In = const ClaimInputs&;

constexpr std::string_view unit = "FLOP/byte";

double ridge(const DeviceSpec& device, MathType math) { return roof_of(device, math).ridge(); }
double tflops(const DeviceSpec& device, MathType math) {
  return device.peak_flops.at(math) * 1e-12;
}

OpCost vector_add(int64_t n) {
  OpCost cost = copy_cost(2 * n, n, DType::F32);
  cost.flops = n;
  return cost;
}

constexpr int64_t gemm_width = 4096;
OpCost square_gemm(int64_t m) {
  return linear_cost(m, gemm_width, gemm_width, gemm_width, DType::BF16, DType::BF16);
}
double crossing(double at_ridge) {
  return gemm_crossing(at_ridge, gemm_width, bf16_format.bytes_per_value);
}

void say_ridges(const Say& say) {
  const std::string_view row = "Ridge";
  say({row, "A100 80 GB, bf16", "153", unit, [](In in) { return ridge(in.a100, MathType::bf16); }});
  say({row, "H100 SXM, bf16", "295", unit, [](In in) { return ridge(in.h100, MathType::bf16); }});
  say({row, "H200, bf16", "206", unit, [](In in) { return ridge(in.h200, MathType::bf16); }});
  say({row, "V100, f16", "139", unit, [](In in) { return ridge(in.v100, MathType::f16); }});
  say({row, "P100, f16", "29", unit, [](In in) { return ridge(in.p100, MathType::f16); }});
  say({row, "B200, bf16", "281", unit, [](In in) { return ridge(in.b200, MathType::bf16); }});
  say({row, "H100 SXM, FP8", "590.7", unit, [](In in) { return ridge(in.h100, MathType::fp8); }});
  say({row,
       "H100 SXM, f32",
       "20.0",
       unit,
       [](In in) { return ridge(in.h100, MathType::f32); },
       "CUDA cores"});
  say({row, "H100 SXM: tensor cores in bf16 against CUDA cores in f32", "14.8", "x", [](In in) {
         return tflops(in.h100, MathType::bf16) / tflops(in.h100, MathType::f32);
       }});
}

void say_dense_peaks(const Say& say) {
  const std::string_view row = "Dense peak";
  say({row,
       "H100 SXM, bf16",
       "1979",
       "TFLOP/s",
       [](In in) { return tflops(in.h100, MathType::bf16); },
       "1,979 is the figure with 2:4 sparsity; a preset that states it is refused"});
  say({row,
       "H100 SXM, FP8",
       "1979",
       "TFLOP/s",
       [](In in) { return tflops(in.h100, MathType::fp8); },
       "dense"});
}

void say_batch_1_use(const Say& say) {
  const std::string_view row = "Batch 1 uses";
  const auto use = [](const DeviceSpec& device) { return 100.0 / ridge(device, MathType::bf16); };
  say({row,
       "of the A100's bf16 peak",
       "0.65",
       "%",
       [use](In in) { return use(in.a100); },
       "1 / ridge"});
  say({row,
       "of the H100's bf16 peak",
       "0.34",
       "%",
       [use](In in) { return use(in.h100); },
       "1 / ridge"});
  say({row,
       "of the H200's bf16 peak",
       "0.49",
       "%",
       [use](In in) { return use(in.h200); },
       "1 / ridge"});
}

void say_decode_intensity(const Say& say) {
  const std::string_view row = "Intensity of decode";
  say({row, "batch 4, 16-bit weights, against batch 1", "4", "x", [](In) {
         return decode_intensity(4, 1, 2.0) / decode_intensity(1, 1, 2.0);
       }});
  say({row,
       "4 tokens a pass, 16-bit weights, against one",
       "4",
       "x",
       [](In) { return decode_intensity(1, 4, 2.0) / decode_intensity(1, 1, 2.0); },
       "if all are accepted"});
  say({row,
       "4-bit weights against 16-bit",
       "4.0",
       "x",
       [](In) {
         return decode_intensity(1, 1, int4_format.bytes_per_value) / decode_intensity(1, 1, 2.0);
       },
       "groups of 32 with an f16 scale are 0.5625 bytes a weight"});
  say({row, "4-bit weights without scales against 16-bit", "4", "x", [](In) {
         return decode_intensity(1, 1, 0.5) / decode_intensity(1, 1, 2.0);
       }});
}

void say_gemm(const Say& say) {
  const std::string_view row = "GEMM of M tokens";
  say({row, "4096 x 4096, bf16: M at the V100's ridge", "149", "tokens", [](In in) {
         return crossing(ridge(in.v100, MathType::f16));
       }});
  say({row, "4096 x 4096, bf16: M at the H100's ridge", "345", "tokens", [](In in) {
         return crossing(ridge(in.h100, MathType::bf16));
       }});
  say({row, "4096 x 4096, bf16, M = 1024", "683", unit, [](In) {
         return intensity(square_gemm(1024));
       }});
}

void say_operations(const Say& say) {
  const std::string_view row = "Operations per byte";
  say({row,
       "FLOPs per multiply-accumulate",
       "2",
       "FLOP",
       [](In) {
         return static_cast<double>(linear_cost(1, 1, 1, 1, DType::BF16, DType::BF16).flops);
       },
       "a ridge in multiply-accumulates per byte is half the figure"});
}

void say_vector_add(const Say& say) {
  const std::string_view row = "Vector add";
  say({row,
       "f32",
       "0.083",
       unit,
       [](In) { return intensity(vector_add(1 << 20)); },
       "1 FLOP per 12 bytes"});
}

}  // namespace

std::vector<Claim> roofline_claims() {
  std::vector<Claim> claims;
  const Say say = [&claims](Claim claim) { claims.push_back(std::move(claim)); };
  say_ridges(say);
  say_dense_peaks(say);
  say_batch_1_use(say);
  say_decode_intensity(say);
  say_gemm(say);
  say_operations(say);
  say_vector_add(say);
  return claims;
}

}  // namespace testbed::plan
