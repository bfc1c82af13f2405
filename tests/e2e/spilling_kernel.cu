// A kernel that cannot do without spilling: 48 values alive at once in the 32 registers that two
// blocks of 1024 threads leave each thread. cuda_build_test.py: the build's flags must refuse it.
__global__ void __launch_bounds__(1024, 2) spills(float* x) {
  constexpr int n_values = 48;
  float values[n_values];
#pragma unroll
  for (int i = 0; i < n_values; ++i) values[i] = x[threadIdx.x + i * 1024];
  __syncthreads();  // nothing is loaded again
#pragma unroll
  for (int i = 0; i < n_values; ++i) {
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < n_values; ++j) sum = sum * values[(i + j) % n_values] + values[j];
    x[threadIdx.x + i * 1024] = sum;
  }
}
