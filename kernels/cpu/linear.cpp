// The loops around the register tiles: threads split the panels of W; within a thread, blocks of
// rows of x, groups of panels, blocks of k (a group's block of W stays in L2), tiles of rows (a
// tile's block of x stays in L1), panels.
#include "kernels/cpu/linear.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/linear_kernels.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t panel_rows = PackedMatrix::panel_rows;
constexpr int64_t max_block_rows = 512;  // of x, packed at a time
constexpr int64_t group_panels = 16;
constexpr int64_t block_bytes_of_panel = int64_t{32} * 1024;

LinearKernel kernel_for(Isa isa, DType x_dtype, DType w_dtype) {
  if (isa == Isa::avx512_bf16 && x_dtype == DType::BF16) return avx512_bf16_kernel();
  if (isa >= Isa::avx512) return avx512_kernel(w_dtype);
  return isa == Isa::avx2 ? avx2_kernel(w_dtype) : portable_kernel(w_dtype);
}

void portable_store(const float* c, const float* bias, int64_t n, void* y, DType dtype) {
  for (int64_t i = 0; i < n; ++i) {
    const float sum = bias == nullptr ? c[i] : c[i] + bias[i];
    if (dtype == DType::F32) {
      static_cast<float*>(y)[i] = sum;
    } else {
      static_cast<bf16*>(y)[i] = to_bf16(sum);
    }
  }
}

LinearStore store_for(Isa isa) {
  if (isa >= Isa::avx512) return avx512_store;
  return isa == Isa::avx2 ? avx2_store : portable_store;
}

// Rows [0, m) of a block of x, cut into n tiles of as equal a height as possible.
struct RowTiles {
  int64_t m;
  int64_t n;
  RowTiles(int64_t rows, int64_t max_rows) : m(rows), n((rows + max_rows - 1) / max_rows) {}
  int64_t begin(int64_t tile) const { return m * tile / n; }
  int64_t rows(int64_t tile) const { return begin(tile + 1) - begin(tile); }
};

// Packs n_rows rows of x for one tile as f32 [padded_cols][n_rows], zeros beyond x's columns.
template <typename From, typename Convert>
void pack_f32(const From* x,
              int64_t n_cols,
              int64_t n_rows,
              int64_t padded_cols,
              float* out,
              const Convert& convert) {
  constexpr int64_t chunk = 64;  // columns of all rows at a time: both sides stay in L1
  for (int64_t begin = 0; begin < n_cols; begin += chunk) {
    const int64_t end = std::min(begin + chunk, n_cols);
    for (int64_t r = 0; r < n_rows; ++r) {
      for (int64_t k = begin; k < end; ++k) out[k * n_rows + r] = convert(x[r * n_cols + k]);
    }
  }
  std::fill(out + n_cols * n_rows, out + padded_cols * n_rows, 0.0F);
}

// The same for pairs of bf16, moved as one.
void pack_pairs(const bf16* x, int64_t n_cols, int64_t n_rows, uint32_t* out) {
  constexpr int64_t chunk = 16;
  const int64_t n_pairs = n_cols / 2;
  for (int64_t begin = 0; begin < n_pairs; begin += chunk) {
    const int64_t end = std::min(begin + chunk, n_pairs);
    for (int64_t r = 0; r < n_rows; ++r) {
      const bf16* row = x + r * n_cols;
      for (int64_t k = begin; k < end; ++k) std::memcpy(out + k * n_rows + r, row + 2 * k, 4);
    }
  }
  if (n_cols % 2 == 0) return;
  for (int64_t r = 0; r < n_rows; ++r) {
    out[n_pairs * n_rows + r] = x[r * n_cols + n_cols - 1].bits;  // the pair's second is zero
  }
}

class Product {
 public:
  Product(const PackedMatrix& w, TensorView x, const float* bias, TensorView y, Isa isa)
      : w_(w),
        x_(x),
        bias_(bias),
        y_(y),
        kernel_(kernel_for(isa, x.dtype(), w.dtype())),
        store_(store_for(isa)) {}

  void run(ThreadPool& pool) {
    const int64_t block = max_block_rows / kernel_.max_rows * kernel_.max_rows;
    for (int64_t begin = 0; begin < x_.n_rows(); begin += block) {
      first_row_ = begin;
      run_block(RowTiles(std::min(block, x_.n_rows() - begin), kernel_.max_rows), pool);
    }
  }

 private:
  int64_t x_unit_bytes() const { return kernel_.bf16_pairs ? 2 : 4; }  // of one packed element

  void run_block(const RowTiles& tiles, ThreadPool& pool) {
    static thread_local std::vector<std::byte> packed;
    const bool as_is = tiles.m == 1 && w_.padded_cols() == w_.n_cols() &&
                       (kernel_.bf16_pairs || x_.dtype() == DType::F32);
    if (as_is) {
      packed_x_ = static_cast<const std::byte*>(x_.rows(first_row_, 1).data());
    } else {
      const int64_t n_bytes = tiles.m * w_.padded_cols() * x_unit_bytes();
      if (static_cast<int64_t>(packed.size()) < n_bytes)
        packed.resize(static_cast<size_t>(n_bytes));
      std::byte* out = packed.data();
      packed_x_ = out;
      pool.parallel_for(tiles.n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t tile = begin; tile < end; ++tile) pack(tiles, tile, out);
      });
    }
    const int64_t granule = w_.n_panels() >= int64_t{16} * pool.n_threads() ? 4 : 1;
    pool.parallel_for(w_.n_panels(), granule, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; group += group_panels) {
        run_group(tiles, group, std::min(group + group_panels, end));
      }
    });
  }

  void pack(const RowTiles& tiles, int64_t tile, std::byte* out) const {
    const int64_t begin = tiles.begin(tile);
    const int64_t n_rows = tiles.rows(tile);
    std::byte* to = out + begin * w_.padded_cols() * x_unit_bytes();
    const TensorView rows = x_.rows(first_row_ + begin, n_rows);
    const int64_t n_cols = w_.n_cols();
    const int64_t padded = w_.padded_cols();
    auto* to_f32s = reinterpret_cast<float*>(to);
    if (kernel_.bf16_pairs) {
      pack_pairs(rows.as<bf16>(), n_cols, n_rows, reinterpret_cast<uint32_t*>(to));
    } else if (x_.dtype() == DType::BF16) {
      pack_f32(rows.as<bf16>(), n_cols, n_rows, padded, to_f32s, [](bf16 v) { return to_f32(v); });
    } else {
      pack_f32(rows.as<float>(), n_cols, n_rows, padded, to_f32s, [](float v) { return v; });
    }
  }

  // Panels [begin, end) of one group, all rows of the block, all of k.
  void run_group(const RowTiles& tiles, int64_t begin, int64_t end) const {
    static thread_local std::vector<float> sums;
    const int64_t c_stride = group_panels * panel_rows;
    const auto n_sums = static_cast<size_t>(tiles.m * c_stride);
    if (sums.size() < n_sums) sums.resize(n_sums);
    float* c = sums.data();
    const int64_t k = w_.padded_cols();
    const int64_t column_bytes = panel_rows * dtype_bytes(w_.dtype(), 1);
    // One tile of rows meets each weight once: nothing to keep, so k is not cut.
    const int64_t k_block =
        tiles.n == 1 ? std::max<int64_t>(k, 1) : block_bytes_of_panel / column_bytes;
    if (k == 0) std::fill(c, c + n_sums, 0.0F);
    for (int64_t k_begin = 0; k_begin < k; k_begin += k_block) {
      const int64_t n_cols = std::min(k_block, k - k_begin);
      for (int64_t t = 0; t < tiles.n; ++t) {
        const int64_t n_rows = tiles.rows(t);
        LinearTile tile{};
        tile.panel_bytes = w_.panel_bytes();
        tile.x = packed_x_ + (tiles.begin(t) * k + k_begin * n_rows) * x_unit_bytes();
        tile.n_rows = static_cast<int>(n_rows);
        tile.n_cols = n_cols;
        tile.first = k_begin == 0;
        tile.c_stride = c_stride;
        for (int64_t panel = begin; panel < end; panel += tile.n_panels) {
          tile.n_panels = kernel_.panels_for(tile.n_rows);
          while (panel + tile.n_panels > end) tile.n_panels /= 2;
          // The first pass over a tile brings the next tile's x nearer, the last tile the next
          // block of W.
          const bool first_pass = panel == begin && t + 1 < tiles.n;
          tile.prefetch_x = first_pass ? n_rows * k * x_unit_bytes() : 0;
          const bool last_tile = tiles.n > 1 && t + 1 == tiles.n && k_begin + k_block < k;
          tile.prefetch_w = last_tile ? k_block * column_bytes : 0;
          tile.w = w_.panel(panel) + k_begin * column_bytes;
          tile.c = c + tiles.begin(t) * c_stride + (panel - begin) * panel_rows;
          kernel_.tile(tile);
        }
      }
    }
    store_group(tiles, begin, end, c, c_stride);
  }

  void store_group(
      const RowTiles& tiles, int64_t begin, int64_t end, const float* c, int64_t c_stride) const {
    const int64_t n = w_.n_rows();
    const int64_t first = begin * panel_rows;
    const int64_t count = std::min(end * panel_rows, n) - first;
    const float* bias = bias_ == nullptr ? nullptr : bias_ + first;
    for (int64_t r = 0; r < tiles.m; ++r) {
      auto* to = static_cast<std::byte*>(y_.data()) +
                 dtype_bytes(y_.dtype(), (first_row_ + r) * n + first);
      store_(c + r * c_stride, bias, count, to, y_.dtype());
    }
  }

  const PackedMatrix& w_;
  TensorView x_;
  const float* bias_;
  TensorView y_;
  LinearKernel kernel_;
  LinearStore store_;
  int64_t first_row_ = 0;
  const std::byte* packed_x_ = nullptr;
};

}  // namespace

void linear(const PackedMatrix& w,
            TensorView x,
            const float* bias,
            TensorView y,
            ThreadPool& pool,
            Isa isa) {
  CHECK(x.shape().rank() == 2 && x.shape()[1] == w.n_cols());
  CHECK(y.shape().rank() == 2 && y.shape()[1] == w.n_rows() && y.shape()[0] == x.shape()[0]);
  CHECK(x.dtype() == DType::F32 || (x.dtype() == DType::BF16 && w.dtype() == DType::BF16));
  CHECK(y.dtype() == DType::F32 || y.dtype() == DType::BF16);
  CHECK(isa <= best_isa());
  if (y.n_elements() == 0) return;
  Product(w, x, bias, y, isa).run(pool);
}

}  // namespace testbed::cpu
