// The register tiles that linear() is built from, one set per instruction set. Every output is one
// chain of sums over k in ascending order (pairs of k for vdpbf16ps), kept in f32: a tile that
// continues from c goes on exactly where the last one stopped. So an output does not depend on the
// tile's shape, on the k blocks, or on the split over threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.hpp"

#ifdef __clang__
#define TESTBED_UNROLL _Pragma("unroll")
#else
#define TESTBED_UNROLL _Pragma("GCC unroll 32")
#endif

namespace testbed::cpu {

// c[r][16 p + i] (+)= sum over k of x[r][k] * w[p][k][i], for n_panels panels of 16 rows of W and
// n_rows rows of x.
struct LinearTile {
  const std::byte* w;   // the k block's first column in the first panel
  int64_t panel_bytes;  // from one panel to the next
  int n_panels;         // 1, 2 or 4, at most what panels_for() says
  const void* x;        // packed for this tile: f32 [k][n_rows], or pairs of bf16 [k/2][n_rows][2]
  int n_rows;           // 1 ... max_rows
  int64_t n_cols;       // of the k block; even where W is BF16
  bool first;           // sums start at zero, not at c
  int64_t prefetch_w;   // how many bytes ahead in each panel to prefetch into L2; 0: not
  int64_t prefetch_x;   // the same in x
  float* c;
  int64_t c_stride;  // elements from one row to the next
};

struct LinearKernel {
  bool bf16_pairs;     // x is packed as pairs of bf16, else as f32
  int max_rows;        // rows of x in one tile
  int n_accumulators;  // n_panels * n_rows is at most this
  void (*tile)(const LinearTile&);

  // For one row the weights only stream through: two panels at a time keep the adders busy, and
  // fewer streams suit the hardware prefetchers (0.97-1.0 of the read loop against 0.93 with four).
  bool two_streams = false;

  constexpr int panels_for(int n_rows) const {
    if (n_rows == 1 && two_streams) return 2;
    if (4 * n_rows <= n_accumulators) return 4;
    return 2 * n_rows <= n_accumulators ? 2 : 1;
  }
};

// y[0, n) = c + bias, bias null for none; y F32 or BF16 (to nearest even).
using LinearStore = void (*)(const float* c, const float* bias, int64_t n, void* y, DType dtype);

LinearKernel portable_kernel(DType w_dtype);
LinearKernel avx2_kernel(DType w_dtype);
LinearKernel avx512_kernel(DType w_dtype);
LinearKernel avx512_bf16_kernel();
void avx2_store(const float* c, const float* bias, int64_t n, void* y, DType dtype);
void avx512_store(const float* c, const float* bias, int64_t n, void* y, DType dtype);

}  // namespace testbed::cpu
