// Many small products in one kernel: experts' rows, whose counts only the device needs to know, and
// heads. The grid does not depend on the counts: a block finds its rows, or that there are none.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/simt_tile.cuh"
#include "kernels/cuda/tensor_core_tile.cuh"

namespace testbed::cuda {

namespace {

// Few rows per group (decode): bound by reading the weights. A block keeps 5 stages of 8 KiB of
// them on their way: 40 KiB per SM where there is one block for each, 120 KiB with the 3 that fit
// an sm_90. Little's law asks for 22 KiB on an H200: 4.8 TB/s (data sheet) over 132 SMs, with 0.6
// us of latency (assumed; `testbed probe` measures it).
using FewRows = TensorCoreTile<16, 64, 1, 4, 6>;
// Many rows (prefill): bound by arithmetic, 64 x 128 results per 24 KB read from L2.
using ManyRows = TensorCoreTile<64, 128, 2, 2, 3>;

// One product as the kernels take it; of the groups' or of all heads.
struct Products {
  const void* x;
  void* y;
  const void* const* weights;  // [n_groups] matrices [n, k]
  const float* biases;         // [n_groups, n] or nullptr
  int64_t x_stride;            // elements between rows
  int64_t y_stride;
  int64_t n;
  int64_t k;
  int32_t y_element_bytes;  // 4: F32, 2: BF16
  int32_t y_in_fours;       // as LinearTile's
};
static_assert(std::has_unique_object_representations_v<Products>);  // equal calls, equal bytes

// Columns from `col` on of rows that share a matrix.
template <typename Tile>
__device__ LinearTile<typename Tile::Operand> tile_of(
    const Products& p, int64_t group, int64_t x_offset, int64_t y_offset, int64_t n_rows) {
  using T = typename Tile::Operand;
  const int64_t col = int64_t{blockIdx.x} * Tile::n_cols;
  const int64_t n_cols = p.n - col;
  return {.x = static_cast<const T*>(p.x) + x_offset,
          .x_stride = p.x_stride,
          .w = static_cast<const T*>(p.weights[group]) + col * p.k,
          .k = p.k,
          .bias = p.biases == nullptr ? nullptr : p.biases + group * p.n + col,
          .y = static_cast<unsigned char*>(p.y) + (y_offset + col) * p.y_element_bytes,
          .y_stride = p.y_stride,
          .y_dtype = p.y_element_bytes == 4 ? DType::F32 : DType::BF16,
          .in_fours = p.y_in_fours != 0,
          .n_rows = static_cast<int>(n_rows < Tile::n_rows ? n_rows : Tile::n_rows),
          .n_cols = static_cast<int>(n_cols < Tile::n_cols ? n_cols : Tile::n_cols)};
}

// Grid: (tiles of n, an upper bound of the tiles of rows). Reads the matrices of groups that have
// rows, n k values each, once per tile of rows (the first time from memory: tiles of a group run
// side by side), and x once per tile of n, from L2. FewRows: memory; ManyRows: arithmetic.
template <typename Tile, bool aligned>
__global__ void __launch_bounds__(Tile::n_threads, Tile::blocks_per_sm)
    grouped_kernel(Products p, const int64_t* first_row, int64_t n_groups) {
  const GroupRows rows = find_group_rows(first_row, n_groups, blockIdx.y, Tile::n_rows);
  if (rows.group < 0) return;
  Tile::template run<aligned>(
      tile_of<Tile>(p, rows.group, rows.first * p.x_stride, rows.first * p.y_stride, rows.n_rows));
}

// Grid: (tiles of n, tiles of the m rows, heads). Bounds as above, with every head's rows m.
template <typename Tile, bool aligned>
__global__ void __launch_bounds__(Tile::n_threads, Tile::blocks_per_sm)
    head_kernel(Products p, int64_t m) {
  const int64_t head = blockIdx.z;
  const int64_t row = int64_t{blockIdx.y} * Tile::n_rows;
  Tile::template run<aligned>(tile_of<Tile>(
      p, head, row * p.x_stride + head * p.k, row * p.y_stride + head * p.n, m - row));
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
// Rows of x, and those of matrices that start on 16 bytes, do too.
bool rows_are_aligned(TensorView x, int64_t k) {
  return is_aligned(x.data()) && dtype_bytes(x.dtype(), k) % 16 == 0;
}

Products products(TensorView x, TensorView y, const void* const* weights, int64_t n, int64_t k) {
  CHECK(x.dtype() == DType::F32 || x.dtype() == DType::BF16);
  CHECK(y.dtype() == DType::F32 || y.dtype() == DType::BF16);
  CHECK(k > 0);
  Products p{};
  p.x = x.data();
  p.y = y.data();
  p.weights = weights;
  p.n = n;
  p.k = k;
  p.y_element_bytes = y.dtype() == DType::F32 ? 4 : 2;
  p.y_in_fours = n % 4 == 0 && is_aligned(y.data()) ? 1 : 0;
  return p;
}

dim3 grid_of(int64_t n_tiles, int64_t row_tiles, int64_t heads) {
  constexpr int64_t most = 65535;  // of a grid's y and z
  CHECK(row_tiles <= most && heads <= most);
  return {static_cast<unsigned>(n_tiles),
          static_cast<unsigned>(row_tiles),
          static_cast<unsigned>(heads)};
}

template <typename Tile>
void run_groups(Queue& queue, const GroupedLinear& call, const Products& p) {
  const int64_t n_rows = call.x.n_rows();
  // Each group with rows wastes less than a tile.
  const int64_t most_groups = std::min(call.n_groups, n_rows);
  const int64_t row_tiles = (n_rows + most_groups * (Tile::n_rows - 1)) / Tile::n_rows;
  launch(queue,
         rows_are_aligned(call.x, p.k) ? grouped_kernel<Tile, true> : grouped_kernel<Tile, false>,
         {grid_of(divide_up(p.n, Tile::n_cols), row_tiles, 1), Tile::n_threads, Tile::shared_bytes},
         p,
         call.first_row,
         call.n_groups);
}

template <typename Tile>
void run_heads(Queue& queue, TensorView x, const Products& p) {
  const int64_t m = x.n_rows();
  const int64_t heads = x.shape()[1];
  launch(queue,
         rows_are_aligned(x, p.k) ? head_kernel<Tile, true> : head_kernel<Tile, false>,
         {grid_of(divide_up(p.n, Tile::n_cols), divide_up(m, Tile::n_rows), heads),
          Tile::n_threads,
          Tile::shared_bytes},
         p,
         m);
}

}  // namespace

void grouped_linear(Queue& queue, const GroupedLinear& call) {
  const int64_t n_rows = call.x.n_rows();
  if (n_rows == 0 || call.n_groups == 0) return;
  CHECK(call.weight_dtype == call.x.dtype());
  CHECK(call.x.n_elements() == n_rows * call.k && call.y.n_elements() == n_rows * call.n);
  Products p = products(call.x, call.y, call.weights, call.n, call.k);
  p.biases = call.biases;
  p.x_stride = call.k;
  p.y_stride = call.n;
  if (call.x.dtype() == DType::F32) {
    run_groups<SimtTile>(queue, call, p);
  } else if (n_rows <= call.n_groups * FewRows::n_rows) {
    run_groups<FewRows>(queue, call, p);
  } else {
    run_groups<ManyRows>(queue, call, p);
  }
}

void head_linear(
    Queue& queue, TensorView x, const void* const* weights, DType weight_dtype, TensorView y) {
  if (x.empty()) return;
  CHECK(weight_dtype == x.dtype());
  const int64_t m = x.n_rows();
  const int64_t heads = x.shape()[1];
  Products p = products(x, y, weights, y.shape()[2], x.shape()[2]);
  p.x_stride = heads * p.k;
  p.y_stride = heads * p.n;
  if (x.dtype() == DType::F32) {
    run_heads<SimtTile>(queue, x, p);
  } else if (m <= FewRows::n_rows) {
    run_heads<FewRows>(queue, x, p);
  } else {
    run_heads<ManyRows>(queue, x, p);
  }
}

}  // namespace testbed::cuda
