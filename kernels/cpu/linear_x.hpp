// The rows of x, packed for the register tiles: once for all products that read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/index_range.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/linear_kernels.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace testbed::cpu {

// Rows [0, m) of a block of x, cut into n tiles of as equal a height as possible.
struct RowTiles {
  int64_t m = 0;
  int64_t n = 0;
  RowTiles() = default;
  RowTiles(int64_t rows, int64_t max_rows) : m(rows), n((rows + max_rows - 1) / max_rows) {}
  int64_t begin(int64_t tile) const { return m * tile / n; }
  int64_t rows(int64_t tile) const { return begin(tile + 1) - begin(tile); }
};

class PackedX {
 public:
  // rows [m, k] F32 or BF16; packs them in parallel if they are many. int8: BF16 only.
  void pack(TensorView rows, XPacking packing, int max_rows, ThreadPool& pool, Isa isa);

  const RowTiles& tiles() const { return tiles_; }
  // Sets what a tile reads of x from column k_begin on.
  void operand(int64_t tile, int64_t k_begin, LinearTile& out) const;
  int64_t tile_bytes(int64_t tile) const { return tiles_.rows(tile) * row_bytes_; }

 private:
  void pack_tile(TensorView rows, int64_t tile, IndexRange columns) const;
  void quantise_tile(TensorView rows, int64_t tile, IndexRange columns) const;

  XPacking packing_ = XPacking::f32;
  Isa isa_ = Isa::portable;
  RowTiles tiles_;
  int64_t n_cols_ = 0;
  int64_t padded_cols_ = 0;
  int64_t row_bytes_ = 0;  // packed
  const std::byte* packed_ = nullptr;
  std::vector<std::byte> memory_;
};

// One row of x as codes, in blocks of 32 columns.
struct QuantisedX {
  int8_t* codes;          // [n_blocks][32], zero beyond n_cols
  float* scales;          // [n_blocks]
  int32_t* negated_sums;  // of a block's codes
  float* sums;            // of a block's codes, times the scale
};
// scale = max|x| / 127, code = rint(x / scale), to even; 0 for both where all are zero. A block
// that is not finite: scale NaN, codes 0.
using QuantiseX = void (*)(const bf16* x, int64_t n_cols, const QuantisedX& out);
void portable_quantise_x(const bf16* x, int64_t n_cols, const QuantisedX& out);
void avx2_quantise_x(const bf16* x, int64_t n_cols, const QuantisedX& out);
void avx512_quantise_x(const bf16* x, int64_t n_cols, const QuantisedX& out);

}  // namespace testbed::cpu
