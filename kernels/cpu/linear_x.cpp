#include "kernels/cpu/linear_x.hpp"

#include <algorithm>
#include <cstring>

namespace testbed::cpu {
namespace {

constexpr int64_t block_cols = PackedLayout::block_cols;
// Where columns are cut for threads: whole blocks, and whole cache lines of one row packed.
constexpr int64_t cut_cols = 64;
// Fewer elements than this the caller packs alone, faster than it could wake a thread (1 us): these
// take some 3 us.
int64_t alone_elements(XPacking packing) { return packing == XPacking::int8 ? 6 << 10 : 12 << 10; }

// Packs these columns of n_rows rows of x for one tile as f32 [padded_cols][n_rows].
template <typename From, typename Convert>
void pack_f32(const From* x,
              int64_t n_cols,
              int64_t n_rows,
              IndexRange columns,
              float* out,
              const Convert& convert) {
  constexpr int64_t chunk = 64;  // columns of all rows at a time: both sides stay in L1
  for (int64_t begin = columns.begin; begin < columns.end; begin += chunk) {
    const int64_t end = std::min(begin + chunk, columns.end);
    for (int64_t r = 0; r < n_rows; ++r) {
      for (int64_t k = begin; k < end; ++k) out[k * n_rows + r] = convert(x[r * n_cols + k]);
    }
  }
}

// The same for pairs of bf16, moved as one.
void pack_pairs(const bf16* x, int64_t n_cols, int64_t n_rows, IndexRange columns, uint32_t* out) {
  constexpr int64_t chunk = 16;
  const int64_t n_pairs = columns.end / 2;
  for (int64_t begin = columns.begin / 2; begin < n_pairs; begin += chunk) {
    const int64_t end = std::min(begin + chunk, n_pairs);
    for (int64_t r = 0; r < n_rows; ++r) {
      const bf16* row = x + r * n_cols;
      for (int64_t k = begin; k < end; ++k) std::memcpy(out + k * n_rows + r, row + 2 * k, 4);
    }
  }
  if (columns.end % 2 == 0) return;
  for (int64_t r = 0; r < n_rows; ++r) {
    out[n_pairs * n_rows + r] = x[r * n_cols + n_cols - 1].bits;  // the pair's second is zero
  }
}

QuantiseX quantise_for(Isa isa) {
  if (isa >= Isa::avx512) return avx512_quantise_x;
  return isa == Isa::avx2 ? avx2_quantise_x : portable_quantise_x;
}

// Where a tile's parts begin, from this column on: codes, then for each block and row a scale, a
// negated sum, a sum.
QuantisedX parts_of(std::byte* tile, int64_t n_rows, int64_t padded_cols, int64_t first_col = 0) {
  const int64_t n_values = n_rows * (padded_cols / block_cols);
  std::byte* values = tile + n_rows * padded_cols + 4 * n_rows * (first_col / block_cols);
  return {reinterpret_cast<int8_t*>(tile + n_rows * first_col),
          reinterpret_cast<float*>(values),
          reinterpret_cast<int32_t*>(values + 4 * n_values),
          reinterpret_cast<float*>(values + 8 * n_values)};
}

// count values of 4 bytes, each n_rows of them after the one before.
void spread(const void* from, int64_t count, int64_t n_rows, void* to) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* out = static_cast<std::byte*>(to);
  for (int64_t i = 0; i < count; ++i) std::memcpy(out + 4 * i * n_rows, source + 4 * i, 4);
}

}  // namespace

void PackedX::pack(TensorView rows, XPacking packing, int max_rows, ThreadPool& pool, Isa isa) {
  packing_ = packing;
  isa_ = isa;
  tiles_ = RowTiles(rows.n_rows(), max_rows);
  n_cols_ = rows.shape()[1];
  const bool is_int8 = packing == XPacking::int8;
  const int64_t unit = is_int8 ? block_cols : 4;  // fp8 weights are padded to 4 columns
  padded_cols_ = (n_cols_ + unit - 1) / unit * unit;
  row_bytes_ = is_int8 ? padded_cols_ + padded_cols_ / block_cols * 12
                       : padded_cols_ * (packing == XPacking::f32 ? 4 : 2);
  const bool is_f32 = rows.dtype() == DType::F32;
  const bool packed_already = packing == (is_f32 ? XPacking::f32 : XPacking::bf16_pairs);
  if (tiles_.m == 1 && packed_already && padded_cols_ == n_cols_) {
    packed_ = static_cast<const std::byte*>(rows.data());
    return;
  }
  const auto n_bytes = static_cast<size_t>(tiles_.m * row_bytes_);
  if (memory_.size() < n_bytes) memory_.resize(n_bytes);
  packed_ = memory_.data();
  if (n_bytes == 0) return;  // no columns
  const bool alone = rows.n_elements() < alone_elements(packing);
  // Fewer tiles than threads are cut.
  const int64_t n_pieces = alone || tiles_.n >= pool.n_threads() ? 1 : pool.n_threads();
  const int64_t n_cuts = (n_cols_ + cut_cols - 1) / cut_cols;
  pool.parallel_for(tiles_.n * n_pieces, alone ? tiles_.n : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t piece = i % n_pieces;
      const IndexRange columns{n_cuts * piece / n_pieces * cut_cols,
                               std::min(n_cuts * (piece + 1) / n_pieces * cut_cols, n_cols_)};
      if (is_int8) {
        quantise_tile(rows, i / n_pieces, columns);
      } else {
        pack_tile(rows, i / n_pieces, columns);
      }
    }
  });
}

void PackedX::pack_tile(TensorView rows, int64_t tile, IndexRange columns) const {
  const int64_t begin = tiles_.begin(tile);
  const int64_t n = tiles_.rows(tile);
  auto* to = const_cast<std::byte*>(packed_) + begin * row_bytes_;
  if (columns.end == n_cols_) {
    const int64_t n_bytes = n * (packing_ == XPacking::f32 ? 4 : 2);  // of a column
    const int64_t first = n_cols_ / 2 * 2;  // an odd last column shares its pair with zeros
    std::memset(to + first * n_bytes, 0, static_cast<size_t>((padded_cols_ - first) * n_bytes));
  }
  const TensorView from = rows.rows(begin, n);
  auto* floats = reinterpret_cast<float*>(to);
  if (packing_ == XPacking::bf16_pairs) {
    pack_pairs(from.as<bf16>(), n_cols_, n, columns, reinterpret_cast<uint32_t*>(to));
  } else if (from.dtype() == DType::BF16) {
    pack_f32(from.as<bf16>(), n_cols_, n, columns, floats, [](bf16 v) { return to_f32(v); });
  } else {
    pack_f32(from.as<float>(), n_cols_, n, columns, floats, [](float v) { return v; });
  }
}

void PackedX::quantise_tile(TensorView rows, int64_t tile, IndexRange columns) const {
  const int64_t begin = tiles_.begin(tile);
  const int64_t n = tiles_.rows(tile);
  const QuantiseX quantise_row = quantise_for(isa_);
  const QuantisedX to = parts_of(
      const_cast<std::byte*>(packed_) + begin * row_bytes_, n, padded_cols_, columns.begin);
  const bf16* from = rows.as<bf16>() + begin * n_cols_ + columns.begin;
  if (n == 1) {
    quantise_row(from, columns.size(), to);
    return;
  }
  static thread_local std::vector<std::byte> one_row;
  if (static_cast<int64_t>(one_row.size()) < row_bytes_) {
    one_row.resize(static_cast<size_t>(row_bytes_));
  }
  const QuantisedX row = parts_of(one_row.data(), 1, padded_cols_);
  const int64_t n_blocks = (columns.size() + block_cols - 1) / block_cols;
  for (int64_t r = 0; r < n; ++r) {
    quantise_row(from + r * n_cols_, columns.size(), row);
    spread(row.codes, n_blocks * block_cols / 4, n, to.codes + 4 * r);
    spread(row.scales, n_blocks, n, to.scales + r);
    spread(row.negated_sums, n_blocks, n, to.negated_sums + r);
    spread(row.sums, n_blocks, n, to.sums + r);
  }
}

void PackedX::operand(int64_t tile, int64_t k_begin, LinearTile& out) const {
  const int64_t n = tiles_.rows(tile);
  const std::byte* from = packed_ + tiles_.begin(tile) * row_bytes_;
  out.n_rows = static_cast<int>(n);
  if (packing_ != XPacking::int8) {
    out.x = from + k_begin * n * (packing_ == XPacking::f32 ? 4 : 2);
    return;
  }
  const QuantisedX parts = parts_of(const_cast<std::byte*>(from), n, padded_cols_, k_begin);
  out.x = parts.codes;
  out.x_scales = parts.scales;
  out.x_negated_sums = parts.negated_sums;
  out.x_sums = parts.sums;
}

}  // namespace testbed::cpu
