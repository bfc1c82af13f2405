// Tiles of linear() in plain C++, for any processor.
#include "kernels/cpu/linear_kernels.hpp"

namespace testbed::cpu {
namespace {

constexpr int panel_rows = 16;

float weight(const float* w, int64_t k, int64_t i) { return w[k * panel_rows + i]; }
float weight(const f16* w, int64_t k, int64_t i) { return to_f32(w[k * panel_rows + i]); }
float weight(const bf16* w, int64_t k, int64_t i) {
  return to_f32(w[(k / 2 * panel_rows + i) * 2 + k % 2]);
}

template <typename T>
void tile(const LinearTile& t) {
  const auto* x = static_cast<const float*>(t.x);
  for (int64_t p = 0; p < t.n_panels; ++p) {
    const auto* w = reinterpret_cast<const T*>(t.w + p * t.panel_bytes);
    float* c = t.c + p * panel_rows;
    for (int64_t r = 0; r < t.n_rows; ++r) {
      for (int64_t i = 0; t.first && i < panel_rows; ++i) c[r * t.c_stride + i] = 0.0F;
    }
    for (int64_t k = 0; k < t.n_cols; ++k) {
      float column[panel_rows];
      for (int64_t i = 0; i < panel_rows; ++i) column[i] = weight(w, k, i);
      for (int64_t r = 0; r < t.n_rows; ++r) {
        const float value = x[k * t.n_rows + r];
        float* sums = c + r * t.c_stride;
        for (int64_t i = 0; i < panel_rows; ++i) sums[i] += value * column[i];
      }
    }
  }
}

}  // namespace

LinearKernel portable_kernel(DType w_dtype) {
  const auto function = w_dtype == DType::F32   ? tile<float>
                        : w_dtype == DType::F16 ? tile<f16>
                                                : tile<bf16>;
  return {.x_packing = XPacking::f32, .max_rows = 8, .n_accumulators = 8, .tile = function};
}

}  // namespace testbed::cpu
