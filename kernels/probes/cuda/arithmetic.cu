// Multiply-adds in registers. Bound: the SMs' units, nothing is read and 4 bytes a thread written.
#include "cuda_arch/half.cuh"
#include "kernels/probes/cuda/arithmetic.hpp"
#include "kernels/probes/cuda/probe_code.cuh"
#include "kernels/probes/cuda/probe_support.hpp"

namespace testbed::cuda {
namespace {

constexpr int n_threads = 256;
constexpr int n_chains = 8;  // a multiply-add takes 4 clocks or so: one warp by itself keeps on

__device__ inline float fma_of(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fma_of(double a, double b, double c) { return fma(a, b, c); }
__device__ inline Half2 fma_of(Half2 a, Half2 b, Half2 c) { return fma_half2(a, b, c); }
__device__ inline void set(float& x, float value) { x = value; }
__device__ inline void set(double& x, float value) { x = value; }
__device__ inline void set(Half2& x, float value) { x = half2_of(value); }
__device__ inline float sum(float x) { return x; }
__device__ inline float sum(double x) { return static_cast<float>(x); }
__device__ inline float sum(Half2 x) { return low_float(x) + high_float(x); }

// x = a x + b in n_chains chains of T. With a = 1/2, b = 1 every chain ends at 2.
template <typename T>
__device__ inline float run_chains(int n_rounds, float a_value, float b_value) {
  T a;
  T b;
  T x[n_chains];
  set(a, a_value);
  set(b, b_value);
  for (int c = 0; c < n_chains; ++c) set(x[c], 1.0F + 0.125F * static_cast<float>(c));
#pragma unroll 8
  for (int round = 0; round < n_rounds; ++round) {
    for (int c = 0; c < n_chains; ++c) x[c] = fma_of(x[c], a, b);
  }
  float total = 0.0F;
  for (int c = 0; c < n_chains; ++c) total += sum(x[c]);
  return total;
}

// FLOP: threads x n_rounds x 8 x 2, twice that for pairs.
template <typename T>
__global__ void __launch_bounds__(n_threads)
    multiply_add(int n_rounds, float a, float b, float* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = run_chains<T>(n_rounds, a, b);
}

// The same FLOP; a warp goes through its n_ways branches one after another.
__global__ void __launch_bounds__(n_threads)
    multiply_add_diverging(int n_ways, int n_rounds, float a, float b, float* out) {
  for (int way = 0; way < n_ways; ++way) {
    if (static_cast<int>(threadIdx.x) % n_ways == way) {
      out[blockIdx.x * blockDim.x + threadIdx.x] = run_chains<float>(n_rounds, a, b);
    }
  }
}

constexpr float half = 0.5F;
constexpr float one = 1.0F;

Tensor outputs(const ArithmeticSize& size) {
  return device_tensor(DType::F32, {int64_t{size.n_blocks} * n_threads});
}
// Each chain ends at 2 after the rounds that its type's digits take.
void expect_fixed_point(Queue& queue, const Tensor& out, int values_per_chain, const char* probe) {
  for (const float x : values_of<float>(queue, out)) {
    expect_equal(x, 2.0 * n_chains * values_per_chain, probe);
  }
}

template <typename T>
MathRate measure(Queue& queue,
                 const ArithmeticSize& size,
                 const Effort& effort,
                 MathType type,
                 int values_per_chain) {
  const Tensor out = outputs(size);
  clear(queue, out);
  const double seconds = Stopwatch(queue).median_seconds(
      [&] {
        launch(queue,
               multiply_add<T>,
               {grid_of(size.n_blocks), dim3(n_threads)},
               size.n_rounds,
               half,
               one,
               static_cast<float*>(out.data()));
      },
      effort);
  expect_fixed_point(queue, out, values_per_chain, "multiply-adds");
  const double flops = static_cast<double>(arithmetic_flops(size)) * values_per_chain;
  return {.type = type, .by_library = false, .flops = flops / seconds};
}

}  // namespace

int64_t arithmetic_flops(const ArithmeticSize& size) {
  return int64_t{2} * n_chains * n_threads * size.n_blocks * size.n_rounds;
}

std::vector<MathRate> measure_cuda_cores(Queue& queue,
                                         const ArithmeticSize& size,
                                         const Effort& effort) {
  // A double's 53 digits are right after as many rounds.
  constexpr int least_rounds = 64;
  CHECK(size.n_rounds >= least_rounds);
  return {measure<double>(queue, size, effort, MathType::f64, 1),
          measure<float>(queue, size, effort, MathType::f32, 1),
          measure<Half2>(queue, size, effort, MathType::f16, 2)};
}

std::vector<DivergenceRate> measure_divergence(Queue& queue,
                                               const ArithmeticSize& size,
                                               const Effort& effort) {
  const Tensor out = outputs(size);
  Stopwatch stopwatch(queue);
  std::vector<DivergenceRate> rates;
  for (const int n_ways : {1, 2, 4, 8, 16, 32}) {
    clear(queue, out);
    const double seconds = stopwatch.median_seconds(
        [&] {
          launch(queue,
                 multiply_add_diverging,
                 {grid_of(size.n_blocks), dim3(n_threads)},
                 n_ways,
                 size.n_rounds,
                 half,
                 one,
                 static_cast<float*>(out.data()));
        },
        effort);
    expect_fixed_point(queue, out, 1, "divergence");
    rates.push_back(
        {.n_ways = n_ways, .flops = static_cast<double>(arithmetic_flops(size)) / seconds});
  }
  return rates;
}

}  // namespace testbed::cuda
