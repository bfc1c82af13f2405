// Products with quantised weights, for one matrix or many (experts). A weight is read once and
// expanded in registers into the operand of a tensor core's product: up to 64 rows of x share that.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/linear_tile.cuh"
#include "kernels/cuda/quantised_code.cuh"
#include "kernels/cuda/simt_tile.cuh"

namespace testbed::cuda {
namespace {

// One call as the kernels take it.
struct Products {
  QuantisedLayout layout;
  const void* x;
  void* y;
  const void* matrix;           // of all rows, or
  const void* const* matrices;  // [n_groups]
  const int64_t* first_row;     // [n_groups + 1] with matrices
  const float* biases;          // [n_groups, n] or nullptr
  int64_t n_groups;
  int64_t n_rows;           // of x and y
  int32_t y_element_bytes;  // 4: F32, 2: BF16
  int32_t y_in_fours;       // as LinearTile's
};
static_assert(std::has_unique_object_representations_v<Products>);  // equal calls, equal bytes

// The rows of x that a block takes: of one matrix, a tile's worth at most. Every lane must ask.
__device__ GroupRows block_rows(const Products& p, int tile_rows) {
  if (p.matrices != nullptr) return find_group_rows(p.first_row, p.n_groups, blockIdx.y, tile_rows);
  const int64_t first = int64_t{blockIdx.y} * tile_rows;
  const int64_t n_left = p.n_rows - first;
  return {0, first, static_cast<int>(n_left < tile_rows ? n_left : tile_rows)};
}

__device__ const void* matrix_of(const Products& p, const GroupRows& rows) {
  return p.matrices != nullptr ? p.matrices[rows.group] : p.matrix;
}

// The block's piece of y, from column col on.
template <typename T>
__device__ LinearTile<T> tile_of(const Products& p, const GroupRows& rows, int64_t col, int cols) {
  const int64_t n = p.layout.n_rows;
  const int64_t k = p.layout.n_cols;
  return {.x = static_cast<const T*>(p.x) + rows.first * k,
          .x_stride = k,
          .w = nullptr,  // quantised
          .k = k,
          .bias = p.biases == nullptr ? nullptr : p.biases + rows.group * n + col,
          .y = static_cast<unsigned char*>(p.y) + (rows.first * n + col) * p.y_element_bytes,
          .y_stride = n,
          .y_dtype = p.y_element_bytes == 4 ? DType::F32 : DType::BF16,
          .in_fours = p.y_in_fours != 0,
          .n_rows = rows.n_rows,
          .n_cols = static_cast<int>(n - col < cols ? n - col : cols)};
}

// The sums of a warp: its strip's rows g and g + 8, of rows 2 t and 2 t + 1 of each 8 rows of x.
template <typename K, int m_tiles>
struct StripSums {
  float sums[m_tiles][4] = {};
  float of_group[m_tiles][4] = {};  // not scaled
  float of_x[m_tiles][4] = {};      // sums of x over the group, for minima

  // Half a unit of weights times eight columns of each lane's rows of x.
  template <bool wide>
  __device__ void multiply(const LinearTile<bf16>& tile,
                           const LaneUnit<K>& lanes,
                           int half,
                           int64_t col) {
    constexpr uint32_t ones[4] = {0x3f803f80U, 0x3f803f80U, 0x3f803f80U, 0x3f803f80U};
    const auto lane = static_cast<int>(threadIdx.x) % warp_size;
    uint32_t a[2][4];
    for (int step = 0; step < 2; ++step) lanes.expand(half, step, a[step]);
    const int64_t at = col + lane % 4 * piece;
#pragma unroll
    for (int i = 0; i < m_tiles; ++i) {
      if (i > 0 && 8 * i >= tile.n_rows) break;
      const int row = 8 * i + lane / 4;
      const bf16* from = tile.x + row * tile.x_stride + at;
      Piece<bf16> x;
      if (row < tile.n_rows && at < tile.k) {
        x = wide ? load_whole(from) : load_some(from, count_of(tile.k - at));
      }
      for (int step = 0; step < 2; ++step) {
        const uint32_t b[2] = {x.parts[0].w[2 * step], x.parts[0].w[2 * step + 1]};
        mma_m16n8k16_bf16(of_group[i], a[step], b);
        if constexpr (K::offset == WeightOffset::minimum) mma_m16n8k16_bf16(of_x[i], ones, b);
      }
    }
  }

  // The end of a group's columns, or of a part of them.
  __device__ void add_scaled(const QuantisedLayout& layout, const LaneUnit<K>& lanes, int group) {
    const float scales[2] = {lanes.scale(layout, group, 0), lanes.scale(layout, group, 1)};
    for (int i = 0; i < m_tiles; ++i) {
      for (int j = 0; j < 4; ++j) {
        sums[i][j] = fmaf(scales[j / 2], of_group[i][j], sums[i][j]);
        of_group[i][j] = 0.0F;
        if constexpr (K::offset == WeightOffset::minimum) {
          sums[i][j] = fmaf(lanes.minimum(group, j / 2), of_x[i][j], sums[i][j]);
          of_x[i][j] = 0.0F;
        }
      }
    }
  }
};

// 8 m_tiles rows of x times warps_n strips of weights; warps_k warps share a strip's units. wide:
// rows of x can be read 16 bytes at a time.
template <int m_tiles, int warps_n, int warps_k, bool wide>
struct QuantisedTile {
  static constexpr int n_rows = 8 * m_tiles;
  static constexpr int n_cols = static_cast<int>(strip_rows) * warps_n;
  static constexpr int n_threads = warps_n * warps_k * warp_size;
  static constexpr int blocks_per_sm = m_tiles == 1 ? 2 : 1;
  static constexpr int pitch = n_cols + 4;  // of sums in shared memory
  static constexpr int64_t shared_bytes = int64_t{4} * warps_k * n_rows * pitch;

  // Units are asked for a few at a time: 2 KiB on their way for each warp, 16 KiB for each block,
  // of which 2 fit an SM (expert_linear.cu says what an H200 asks for).
  template <typename K>
  static constexpr int n_ahead = 4 / K::n_parts;

  template <typename K>
  __device__ static void run(const Products& p, const LinearTile<bf16>& tile, const void* matrix) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size;
    const int warp_k = warp / warps_n;
    const int64_t strip = int64_t{blockIdx.x} * warps_n + warp % warps_n;
    const auto n_units = static_cast<int>(p.layout.n_units);
    const bool has_strip = strip * strip_rows < p.layout.n_rows;
    StripSums<K, m_tiles> sums;
    for (int first = warp_k; has_strip && first < n_units; first += n_ahead<K> * warps_k) {
      LaneUnit<K> lanes[n_ahead<K>];
#pragma unroll
      for (int i = 0; i < n_ahead<K>; ++i) {
        const int unit = first + i * warps_k;
        if (unit < n_units) lanes[i].load(p.layout, matrix, strip, unit);
      }
#pragma unroll
      for (int i = 0; i < n_ahead<K>; ++i) {
        const int unit = first + i * warps_k;
        if (unit >= n_units) break;
        for (int half = 0; half < 2; ++half) {
          const int64_t col = int64_t{unit} * unit_cols + half * half_cols;
          sums.template multiply<wide>(tile, lanes[i], half, col);
          if (K::fine || half == 1) sums.add_scaled(p.layout, lanes[i], K::fine ? half : 0);
        }
      }
    }
    store(tile, sums.sums, warp, warp_k);
  }

 private:
  // Through shared memory: there the warps that share a strip add up, in order, and rows of y are
  // written whole.
  __device__ static void store(const LinearTile<bf16>& tile,
                               const float (&sums)[m_tiles][4],
                               int warp,
                               int warp_k) {
    float* shared = dynamic_shared<float>();
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    for (int i = 0; i < m_tiles; ++i) {
      for (int j = 0; j < 4; ++j) {
        const int row = 8 * i + lane % 4 * 2 + j % 2;
        const int col = warp % warps_n * static_cast<int>(strip_rows) + lane / 4 + j / 2 * 8;
        shared[(warp_k * n_rows + row) * pitch + col] = sums[i][j];
      }
    }
    __syncthreads();
    for (int at = 4 * static_cast<int>(threadIdx.x); at < n_rows * n_cols; at += 4 * n_threads) {
      const int row = at / n_cols;
      const int col = at % n_cols;
      float total[4] = {};
      for (int part = 0; part < warps_k; ++part) {
        float four[4];
        load_row_part(shared + (part * n_rows + row) * pitch + col, four);
        for (int i = 0; i < 4; ++i) total[i] += four[i];
      }
      store_four(tile, row, col, total);
    }
  }
};

// Few rows (decode): bound by reading the weights.
using FewRows = QuantisedTile<1, 1, 8, true>;
// More: warps beside each other read the same rows of x.
using MoreRows = QuantisedTile<8, 4, 2, true>;
// Any number, where x is not aligned: weights are read for every 8 rows.
using OddRows = QuantisedTile<1, 1, 8, false>;
static_assert(MoreRows::n_rows == most_fused_rows);

// Grid: (tiles of n, an upper bound of the tiles of rows). Reads the matrices of groups that have
// rows once per tile of rows, and x once per tile of n, from L1 and L2.
template <typename Tile, typename K>
__global__ void __launch_bounds__(Tile::n_threads, Tile::blocks_per_sm)
    quantised_kernel(Products p) {
  const GroupRows rows = block_rows(p, Tile::n_rows);
  if (rows.group < 0) return;
  const int64_t col = int64_t{blockIdx.x} * Tile::n_cols;
  Tile::template run<K>(p, tile_of<bf16>(p, rows, col, Tile::n_cols), matrix_of(p, rows));
}

// Grid as above. Each weight is looked up by itself: arithmetic, and much of it.
__global__ void __launch_bounds__(SimtTile::n_threads, SimtTile::blocks_per_sm)
    quantised_simt_kernel(Products p) {
  const GroupRows rows = block_rows(p, SimtTile::n_rows);
  if (rows.group < 0) return;
  const int64_t first = int64_t{blockIdx.x} * SimtTile::n_cols;
  const void* matrix = matrix_of(p, rows);
  SimtTile::run_with<false>(
      tile_of<float>(p, rows, first, SimtTile::n_cols),
      [&](int col, int64_t at) { return value_at(p.layout, matrix, first + col, at); });
}

Products products(const QuantisedLinear& call) {
  const QuantisedLayout& layout = call.layout;
  const int64_t n_rows = call.x.n_rows();
  CHECK(call.x.dtype() == DType::F32 || call.x.dtype() == DType::BF16);
  CHECK(call.y.dtype() == DType::F32 || call.y.dtype() == DType::BF16);
  CHECK(layout.n_cols > 0 && call.x.n_elements() == n_rows * layout.n_cols);
  CHECK(call.y.n_elements() == n_rows * layout.n_rows);
  CHECK((call.matrix == nullptr) == (call.matrices != nullptr));
  return {.layout = layout,
          .x = call.x.data(),
          .y = call.y.data(),
          .matrix = call.matrix,
          .matrices = call.matrices,
          .first_row = call.first_row,
          .biases = call.biases,
          .n_groups = call.n_groups,
          .n_rows = n_rows,
          .y_element_bytes = call.y.dtype() == DType::F32 ? 4 : 2,
          .y_in_fours = layout.n_rows % 4 == 0 && is_wide(call.y.data()) ? 1 : 0};
}

template <typename Tile>
LaunchShape shape_of(const Products& p, int64_t shared_bytes) {
  constexpr int64_t most = 65535;  // of a grid's y
  // Each group with rows wastes less than a tile.
  const int64_t most_groups = p.matrices == nullptr ? 1 : std::min(p.n_groups, p.n_rows);
  const int64_t row_tiles = (p.n_rows + most_groups * (Tile::n_rows - 1)) / Tile::n_rows;
  CHECK(row_tiles <= most);
  return {dim3(static_cast<unsigned>(divide_up(p.layout.n_rows, Tile::n_cols)),
               static_cast<unsigned>(row_tiles)),
          dim3(Tile::n_threads),
          static_cast<size_t>(shared_bytes)};
}

template <typename Tile>
void run_tiles(Queue& queue, const Products& p) {
  with_kind(p.layout, [&]<typename K>(K*) {
    launch(queue, quantised_kernel<Tile, K>, shape_of<Tile>(p, Tile::shared_bytes), p);
  });
}

}  // namespace

void quantised_linear(Queue& queue, const QuantisedLinear& call) {
  const int64_t n_matrices = call.matrices == nullptr ? 1 : call.n_groups;
  if (call.x.n_rows() == 0 || n_matrices == 0 || call.layout.n_rows == 0) return;
  const Products p = products(call);
  if (call.x.dtype() == DType::F32) {
    launch(queue, quantised_simt_kernel, shape_of<SimtTile>(p, SimtTile::shared_bytes), p);
  } else if (!is_wide(call.x.data(), row_bytes(call.x))) {
    run_tiles<OddRows>(queue, p);
  } else if (p.n_rows <= n_matrices * FewRows::n_rows) {
    run_tiles<FewRows>(queue, p);
  } else {
    run_tiles<MoreRows>(queue, p);
  }
}

}  // namespace testbed::cuda
