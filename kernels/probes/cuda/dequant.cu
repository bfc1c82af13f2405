// Quantised weights, read once. Bound: memory, if conversions keep up.
#include <algorithm>

#include "kernels/probes/cuda/bandwidth.hpp"
#include "kernels/probes/cuda/dequant.hpp"
#include "kernels/probes/cuda/probe_code.cuh"
#include "kernels/probes/cuda/probe_support.hpp"

namespace testbed::cuda {
namespace {

constexpr int n_threads = 256;

// Weights of a word, the lowest bits first, as signed integers.
template <int bits>
__device__ inline float weight(uint32_t word, int i) {
  return static_cast<float>(static_cast<int32_t>(word << (32 - bits * (i + 1))) >> (32 - bits));
}

// The sum of the words of bf16 pairs that a word of quantised weights becomes.
template <int bits>
__device__ inline uint32_t converted(uint32_t word, float scale) {
  uint32_t total = 0;
  for (int i = 0; i < 32 / bits; i += 2) {
    total += pack_bf16x2(scale * weight<bits>(word, i), scale * weight<bits>(word, i + 1));
  }
  return total;
}
template <>
__device__ inline uint32_t converted<16>(uint32_t word, float /*scale*/) {
  return word;
}

// values: n pieces of 16 bytes; scales: bf16 [groups], of 32 weights each (not read for 16 bits).
template <int bits>
__global__ void __launch_bounds__(n_threads)
    read_weights(const uint4* values, const bf16* scales, int64_t n, uint32_t* sum) {
  constexpr int n_unrolled = 4;
  constexpr int weights_per_piece = 128 / bits;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const auto scale_of = [&](int64_t i) {
    return bits == 16 ? 1.0F : load_one(scales + i * weights_per_piece / quant_group);
  };
  const auto convert = [](uint4 v, float scale) {
    return converted<bits>(v.x, scale) + converted<bits>(v.y, scale) + converted<bits>(v.z, scale) +
           converted<bits>(v.w, scale);
  };
  uint32_t total = 0;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (n_unrolled - 1) * step < n; i += n_unrolled * step) {
    uint4 v[n_unrolled];
    float scale[n_unrolled];
    for (int u = 0; u < n_unrolled; ++u) {
      v[u] = __ldcg(values + i + u * step);
      scale[u] = scale_of(i + u * step);
    }
    for (int u = 0; u < n_unrolled; ++u) total += convert(v[u], scale[u]);
  }
  for (; i < n; i += step) total += convert(__ldcg(values + i), scale_of(i));
  add_up(total, sum);
}

using ReadWeights = void (*)(const uint4*, const bf16*, int64_t, uint32_t*);
struct Format {
  int bits;
  ReadWeights kernel;
};
constexpr Format formats[] = {{16, read_weights<16>}, {8, read_weights<8>}, {4, read_weights<4>}};

// The scale of group g: 1/8, 2/8, ... 7/8.
float scale_of_group(int64_t g) { return 0.125F * static_cast<float>(1 + g % 7); }

Tensor make_scales(Queue& queue, int64_t n_groups) {
  Tensor host(DType::BF16, {n_groups});
  for (int64_t g = 0; g < n_groups; ++g) host.as<bf16>()[g] = to_bf16(scale_of_group(g));
  Tensor scales = device_tensor(DType::BF16, {n_groups});
  copy_to_device(queue, host.data(), scales);
  return scales;
}

// What a kernel has to sum up to over the first n_words words of the pattern.
uint32_t expected_sum(int bits, int64_t n_words) {
  if (bits == 16) return pattern_sum(static_cast<uint64_t>(n_words));
  uint32_t sum = 0;
  const int per_word = 32 / bits;
  for (int64_t w = 0; w < n_words; ++w) {
    const uint32_t word = pattern_word(static_cast<uint64_t>(w));
    const float scale = scale_of_group(w * per_word / quant_group);
    for (int i = 0; i < per_word; ++i) {
      // Two's complement, by hand.
      const auto raw = static_cast<int32_t>(word >> (bits * i)) & ((1 << bits) - 1);
      const int32_t value = raw < (1 << (bits - 1)) ? raw : raw - (1 << bits);
      const uint32_t half = to_bf16(scale * static_cast<float>(value)).bits;
      sum += half << (i % 2 * 16);
    }
  }
  return sum;
}

void read_format(Queue& queue,
                 const Format& format,
                 TensorView values,
                 const Tensor& scales,
                 const Tensor& sum) {
  constexpr int64_t blocks_per_sm = 4;
  const int64_t n = values.n_bytes() / 16;
  launch(queue,
         format.kernel,
         {grid_of(std::min(divide_up(n, n_threads), blocks_per_sm * n_sms())), dim3(n_threads)},
         static_cast<const uint4*>(values.data()),
         scales.as<bf16>(),
         n,
         static_cast<uint32_t*>(sum.data()));
}

}  // namespace

std::vector<DequantRate> measure_dequant(Queue& queue, int64_t n_weights, const Effort& effort) {
  CHECK(n_weights > 0 && n_weights % quant_group == 0);
  // The host checks the first of them.
  const int64_t n_checked = std::min<int64_t>(n_weights, int64_t{1} << 20);
  const Tensor buffer = device_tensor(DType::I32, {n_weights / 2});
  const Tensor scales = make_scales(queue, n_weights / quant_group);
  const Tensor sum = device_tensor(DType::I32, {1});
  write_memory(queue, buffer, 1);
  Stopwatch stopwatch(queue);
  std::vector<DequantRate> rates;
  for (const Format& format : formats) {
    clear(queue, sum);
    const int64_t checked_words = n_checked * format.bits / 32;
    read_format(queue, format, buffer.view().rows(0, checked_words), scales, sum);
    expect_sum(queue, sum, expected_sum(format.bits, checked_words), "dequantisation");
    const TensorView all = buffer.view().rows(0, n_weights * format.bits / 32);
    const double seconds =
        stopwatch.median_seconds([&] { read_format(queue, format, all, scales, sum); }, effort);
    const auto n_bytes = static_cast<double>(quantised_bytes(format.bits, n_weights));
    rates.push_back({.bits = format.bits,
                     .bytes_per_s = n_bytes / seconds,
                     .weights_per_s = static_cast<double>(n_weights) / seconds});
  }
  return rates;
}

}  // namespace testbed::cuda
