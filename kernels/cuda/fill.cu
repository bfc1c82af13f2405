// Synthetic contents. Bound: memory, each element is written once.
#include "kernels/cuda/row_code.cuh"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

template <typename T>
__global__ void fill(T* x, int64_t n, bool wide) {
  for_pieces(1, n, [&](int64_t /*row*/, int64_t i, int count) {
    const auto phase = static_cast<int>(i % 17);
    float v[piece];
    for (int j = 0; j < piece; ++j) v[j] = 0.01F * static_cast<float>((phase + j) % 17 - 8);
    store_values(x + i, count, wide, v);
  });
}

}  // namespace

void fill_synthetic(Queue& queue, TensorView x) {
  const int64_t n = x.n_elements();
  if (n == 0) return;
  with_type(x.dtype(), [&]<typename T>(T*) {
    launch(queue, fill<T>, row_shape(1, n), x.as<T>(), n, is_wide(x.data()));
  });
}

}  // namespace testbed::cuda
