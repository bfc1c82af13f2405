// Rows looked up, copied and summed. Bound: memory.
#include "kernels/cuda/row_code.cuh"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

constexpr int64_t unit = sizeof(uint16_t);  // what copies of bits count in

// out row i = table row ids[i] - first_id, zeros if that is not one of n_table_rows: m rows of d
// elements read and written.
template <typename From, typename To>
__global__ void embed_rows(const int32_t* ids,
                           const From* table,
                           int64_t n_table_rows,
                           int64_t first_id,
                           To* out,
                           int64_t m,
                           int64_t d,
                           bool wide) {
  for_pieces(m, d, [&](int64_t row, int64_t column, int count) {
    const int64_t from = ids[row] - first_id;
    float x[piece] = {};
    if (from >= 0 && from < n_table_rows) {
      unpack(load_piece(table + from * d + column, count, wide), x);
    }
    store_values(out + row * d + column, count, wide, x);
  });
}

// out row i = x row rows[i], or zeros: n_rows rows of n_units * 2 bytes read and written.
template <typename Index>
__global__ void gather(const uint16_t* x,
                       const Index* rows,
                       uint16_t* out,
                       int64_t n_rows,
                       int64_t n_units,
                       bool wide) {
  for_pieces(n_rows, n_units, [&](int64_t row, int64_t column, int count) {
    const int64_t from = rows[row];
    Piece<uint16_t> bits;
    if (from >= 0) bits = load_piece(x + from * n_units + column, count, wide);
    store_piece(out + row * n_units + column, count, wide, bits);
  });
}

// n_rows rows of n_units * 2 bytes read (each `repeat` times, from L2) and written; pitches in
// units.
__global__ void copy_parts(const uint16_t* x,
                           int64_t x_pitch,
                           uint16_t* out,
                           int64_t out_pitch,
                           int64_t n_rows,
                           int64_t n_units,
                           uint32_t repeat,
                           bool wide) {
  for_pieces(n_rows, n_units, [&](int64_t row, int64_t column, int count) {
    const int64_t from = static_cast<uint32_t>(row) / repeat;
    store_piece(out + row * out_pitch + column,
                count,
                wide,
                load_piece(x + from * x_pitch + column, count, wide));
  });
}

template <typename T>
__device__ inline void add_scaled(float (&sum)[piece], Piece<T> bits, float factor) {
  float x[piece];
  unpack(bits, x);
  for (int j = 0; j < piece; ++j) sum[j] = fmaf(factor, x[j], sum[j]);
}

// Each row of x in `rows` is read once, each of out [m, d] written once. Four rows are on their way
// at a time; they are added in order.
template <typename T>
__global__ void combine(const T* x,
                        const int64_t* first,
                        const int64_t* rows,
                        const float* weights,
                        T* out,
                        int64_t m,
                        int64_t d,
                        bool wide) {
  constexpr int batch = 4;
  for_pieces(m, d, [&](int64_t row, int64_t column, int count) {
    float sum[piece] = {};
    const int64_t last = first[row + 1];
    for (int64_t i = first[row]; i < last; i += batch) {
      Piece<T> parts[batch];
      float part_weights[batch];
      for (int b = 0; b < batch; ++b) {
        const bool there = i + b < last;
        part_weights[b] = there ? weights[i + b] : 0.0F;
        if (there) parts[b] = load_piece(x + rows[i + b] * d + column, count, wide);
      }
      for (int b = 0; b < batch; ++b) {
        if (i + b < last) add_scaled(sum, parts[b], part_weights[b]);
      }
    }
    store_values(out + row * d + column, count, wide, sum);
  });
}

template <typename Index>
void gather_units(
    Queue& queue, const void* x, const Index* rows, void* out, int64_t n_rows, int64_t n_bytes) {
  launch(queue,
         gather<Index>,
         row_shape(n_rows, n_bytes / unit),
         static_cast<const uint16_t*>(x),
         rows,
         static_cast<uint16_t*>(out),
         n_rows,
         n_bytes / unit,
         is_wide(x, n_bytes) && is_wide(out));
}

}  // namespace

void embed(Queue& queue,
           std::span<const int32_t> ids,
           TensorView table,
           int64_t first_id,
           TensorView out) {
  const auto m = static_cast<int64_t>(ids.size());
  CHECK(out.n_rows() == m);
  if (out.n_elements() == 0) return;
  const int64_t d = out.row_elements();
  CHECK(table.shape()[-1] == d);
  const int32_t* const on_device = queue.arguments().put(ids);
  const bool wide = is_wide(table.data(), row_bytes(table)) && is_wide(out.data(), row_bytes(out));
  with_type(table.dtype(), [&]<typename From>(From*) {
    with_type(out.dtype(), [&]<typename To>(To*) {
      launch(queue,
             embed_rows<From, To>,
             row_shape(m, d),
             on_device,
             table.as<From>(),
             table.n_rows(),
             first_id,
             out.as<To>(),
             m,
             d,
             wide);
    });
  });
}

void gather_rows(Queue& queue, TensorView x, std::span<const int64_t> rows, TensorView out) {
  CHECK(x.dtype() == out.dtype() && out.n_rows() == static_cast<int64_t>(rows.size()));
  if (out.n_elements() == 0) return;
  const int64_t n_bytes = dtype_bytes(out.dtype(), out.row_elements());
  gather_units(queue, x.data(), queue.arguments().put(rows), out.data(), out.n_rows(), n_bytes);
}

void gather_blocks(Queue& queue,
                   const KvView& from,
                   std::span<const int32_t> blocks,
                   const KvView& to) {
  const auto n_blocks = static_cast<int64_t>(blocks.size());
  CHECK(from.block_size == to.block_size && from.dtype == to.dtype && n_blocks <= to.n_blocks);
  CHECK(from.n_kv_heads == to.n_kv_heads && from.head_dim == to.head_dim);
  CHECK((from.v == nullptr) == (to.v == nullptr) && from.v_dim == to.v_dim);
  if (n_blocks == 0) return;
  const int32_t* const on_device = queue.arguments().put(blocks);
  const int64_t vectors = from.n_kv_heads * from.block_size;  // of a block
  const int64_t k_bytes = dtype_bytes(from.dtype, vectors * from.head_dim);
  gather_units(queue, from.k, on_device, to.k, n_blocks, k_bytes);
  if (from.v == nullptr) return;
  const int64_t v_bytes = dtype_bytes(from.dtype, vectors * from.v_dim);
  gather_units(queue, from.v, on_device, to.v, n_blocks, v_bytes);
}

void copy_columns(
    Queue& queue, TensorView x, int64_t x_column, int64_t n, TensorView out, int64_t out_column) {
  if (out.n_elements() == 0 || n == 0) return;
  CHECK(x.dtype() == out.dtype() && x.n_elements() > 0);
  CHECK(x_column + n <= x.shape()[-1] && out_column + n <= out.shape()[-1]);
  const int64_t n_rows = out.n_elements() / out.shape()[-1];
  const int64_t repeat = n_rows / (x.n_elements() / x.shape()[-1]);
  CHECK(n_rows <= UINT32_MAX);
  const auto units = [&](int64_t n_elements) { return dtype_bytes(x.dtype(), n_elements) / unit; };
  const auto* const from = static_cast<const uint16_t*>(x.data()) + units(x_column);
  auto* const to = static_cast<uint16_t*>(out.data()) + units(out_column);
  launch(queue,
         copy_parts,
         row_shape(n_rows, units(n)),
         from,
         units(x.shape()[-1]),
         to,
         units(out.shape()[-1]),
         n_rows,
         units(n),
         static_cast<uint32_t>(repeat),
         is_wide(from, row_bytes(x)) && is_wide(to, row_bytes(out)));
}

void combine_rows(Queue& queue, TensorView x, const WeightedRows& sums, TensorView out) {
  CHECK(x.dtype() == out.dtype() && sums.rows.size() == sums.weights.size());
  CHECK(static_cast<int64_t>(sums.first.size()) == out.n_rows() + 1);
  if (out.n_elements() == 0) return;
  const int64_t m = out.n_rows();
  const int64_t d = out.row_elements();
  Arguments& arguments = queue.arguments();
  const int64_t* const first = arguments.put(sums.first);
  const int64_t* const rows = arguments.put(sums.rows);
  const float* const weights = arguments.put(sums.weights);
  const bool wide = is_wide(x.data(), dtype_bytes(x.dtype(), d)) && is_wide(out.data());
  with_type(out.dtype(), [&]<typename T>(T*) {
    launch(queue,
           combine<T>,
           row_shape(m, d),
           x.as<T>(),
           first,
           rows,
           weights,
           out.as<T>(),
           m,
           d,
           wide);
  });
}

}  // namespace testbed::cuda
