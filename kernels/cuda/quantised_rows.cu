// Rows of quantised matrices: stored, expanded, looked up. Bound: memory.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/quantised_code.cuh"

namespace testbed::cuda {
namespace {

static_assert(std::has_unique_object_representations_v<QuantisedLayout>);  // equal calls, bytes
static_assert(std::has_unique_object_representations_v<StoredRows>);

constexpr int n_threads = 256;

// A thread for each 32-bit word of the strips that have rows; words keep the codes of others.
__global__ void store_codes(
    QuantisedLayout layout, uint32_t* words, StoredRows rows, int64_t first_word, int64_t n_words) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= n_words) return;
  const bool is_4_bit = layout.coding == WeightCoding::int4;
  const int per_unit = words_of_unit(is_4_bit);
  const int bits = is_4_bit ? 4 : 8;
  const int64_t place = first_word + at;
  const auto in_unit = static_cast<int>(place % per_unit);
  const int64_t unit = place / per_unit;
  const int lane = in_unit % 128 / 4;
  uint32_t word = words[place];
  for (int shift = 0; shift < 32; shift += bits) {
    const int half = is_4_bit ? in_unit % 4 / 2 : in_unit / 128;
    const int step = is_4_bit ? in_unit % 2 : in_unit % 4 / 2;
    const int i = is_4_bit ? shift / 4 % 4 : in_unit % 2 * 2 + shift / 8 % 2;
    const int64_t row = unit / layout.n_units * strip_rows + lane / 4 + i % 2 * 8;
    const int64_t col = unit % layout.n_units * unit_cols + half * half_cols + lane % 4 * 8 +
                        step * 4 + i / 2 * 2 + shift / 16;
    const int64_t from = row - rows.first_row;
    if (from < 0 || from >= rows.n_rows || col >= layout.n_cols) continue;
    const uint32_t mask = (1U << bits) - 1U;
    const auto code = static_cast<uint32_t>(rows.codes[from * layout.n_cols + col]);
    word = (word & ~(mask << shift)) | (code & mask) << shift;
  }
  words[place] = word;
}

// Scales or offsets: T has their size.
template <typename T>
__global__ void store_of_groups(QuantisedLayout layout,
                                T* values,
                                const T* from,
                                int64_t first_row,
                                int64_t n_groups,
                                int64_t n_values) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= n_values) return;
  values[scale_place(layout, first_row + at / n_groups, at % n_groups)] = from[at];
}

// A warp for each unit: reads it once, writes its 16 rows in 16-byte pieces, 64 bytes of a row side
// by side.
template <typename K>
__global__ void expand_units(QuantisedLayout layout,
                             const void* matrix,
                             int64_t first_row,
                             bf16* out,
                             int64_t n_rows,
                             bool wide) {
  const int64_t unit = int64_t{blockIdx.x} * (n_threads / warp_size) + threadIdx.x / warp_size;
  const int64_t strip = blockIdx.y;
  if (unit >= layout.n_units) return;
  const auto lane = static_cast<int>(threadIdx.x) % warp_size;
  LaneUnit<K> lanes;
  lanes.load(layout, matrix, first_row / strip_rows + strip, static_cast<int>(unit));
  for (int half = 0; half < 2; ++half) {
    uint32_t codes[2][4];
    for (int step = 0; step < 2; ++step) lanes.expand(half, step, codes[step]);
    const int64_t col = unit * unit_cols + half * half_cols + lane % 4 * 8;
    const int count = count_of(layout.n_cols - col);
    for (int row_half = 0; row_half < 2; ++row_half) {
      const int64_t row = strip * strip_rows + lane / 4 + row_half * 8;
      if (count == 0 || row >= n_rows) continue;
      const int group = K::fine ? half : 0;
      const float scale = lanes.scale(layout, group, row_half);
      float x[piece];
      for (int j = 0; j < piece; ++j) {
        const uint32_t pair = codes[j / 4][row_half + j % 4 / 2 * 2];
        x[j] = as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000U) * scale;
        if constexpr (K::offset == WeightOffset::minimum) x[j] += lanes.minimum(group, row_half);
      }
      store_values(out + row * layout.n_cols + col, count, wide, x);
    }
  }
}

// As embed_rows (rows.cu).
template <typename To>
__global__ void embed_rows_quantised(const int32_t* ids,
                                     QuantisedLayout layout,
                                     const void* table,
                                     int64_t first_id,
                                     To* out,
                                     int64_t m,
                                     bool wide) {
  for_pieces(m, layout.n_cols, [&](int64_t row, int64_t column, int count) {
    const int64_t from = ids[row] - first_id;
    float x[piece] = {};
    if (from >= 0 && from < layout.n_rows) {
      for (int j = 0; j < count; ++j) x[j] = value_at(layout, table, from, column + j);
    }
    store_values(out + row * layout.n_cols + column, count, wide, x);
  });
}

LaunchShape threads_for(int64_t n) {
  return {dim3(static_cast<unsigned>(divide_up(n, n_threads))), dim3(n_threads)};
}

template <typename T>
void store_values_of_groups(Queue& queue,
                            const QuantisedLayout& layout,
                            void* values,
                            const void* from,
                            const StoredRows& rows) {
  const int64_t n = rows.n_rows * rows.n_groups;
  launch(queue,
         store_of_groups<T>,
         threads_for(n),
         layout,
         static_cast<T*>(values),
         static_cast<const T*>(from),
         rows.first_row,
         rows.n_groups,
         n);
}

}  // namespace

void store_quantised(Queue& queue,
                     const QuantisedLayout& layout,
                     void* matrix,
                     const StoredRows& rows) {
  CHECK(rows.first_row >= 0 && rows.first_row + rows.n_rows <= layout.n_rows);
  if (rows.n_rows == 0 || layout.n_cols == 0) return;
  const int64_t first_strip = rows.first_row / strip_rows;
  const int64_t end_strip = divide_up(rows.first_row + rows.n_rows, strip_rows);
  const int64_t strip_words = layout.n_units * words_of_unit(layout.is_4_bit());
  const int64_t n_words = (end_strip - first_strip) * strip_words;
  launch(queue,
         store_codes,
         threads_for(n_words),
         layout,
         static_cast<uint32_t*>(matrix),
         rows,
         first_strip * strip_words,
         n_words);
  auto* bytes = static_cast<std::byte*>(matrix);
  if (layout.scale_is_f32 != 0) {
    store_values_of_groups<float>(queue, layout, bytes + layout.scales_at, rows.scales, rows);
  } else {
    store_values_of_groups<uint16_t>(queue, layout, bytes + layout.scales_at, rows.scales, rows);
  }
  void* const offsets = bytes + layout.offsets_at;
  if (layout.offset == WeightOffset::zero_point) {
    store_values_of_groups<uint8_t>(queue, layout, offsets, rows.offsets, rows);
  } else if (layout.offset == WeightOffset::minimum) {
    store_values_of_groups<uint16_t>(queue, layout, offsets, rows.offsets, rows);
  }
}

void expand_quantised(Queue& queue,
                      const QuantisedLayout& layout,
                      const void* matrix,
                      int64_t first_row,
                      TensorView out) {
  CHECK(out.dtype() == DType::BF16 && out.n_elements() == out.n_rows() * layout.n_cols);
  CHECK(first_row % strip_rows == 0 && first_row + out.n_rows() <= layout.n_rows);
  if (out.n_elements() == 0) return;
  const dim3 grid(static_cast<unsigned>(divide_up(layout.n_units, n_threads / warp_size)),
                  static_cast<unsigned>(divide_up(out.n_rows(), strip_rows)));
  with_kind(layout, [&]<typename K>(K*) {
    launch(queue,
           expand_units<K>,
           {grid, dim3(n_threads)},
           layout,
           matrix,
           first_row,
           out.as<bf16>(),
           out.n_rows(),
           is_wide(out.data(), row_bytes(out)));
  });
}

void embed_quantised(Queue& queue,
                     std::span<const int32_t> ids,
                     const QuantisedLayout& layout,
                     const void* table,
                     int64_t first_id,
                     TensorView out) {
  const auto m = static_cast<int64_t>(ids.size());
  CHECK(out.n_rows() == m);
  if (out.n_elements() == 0) return;
  CHECK(out.row_elements() == layout.n_cols);
  const int32_t* const on_device = queue.arguments().put(ids);
  with_type(out.dtype(), [&]<typename To>(To*) {
    launch(queue,
           embed_rows_quantised<To>,
           row_shape(m, layout.n_cols),
           on_device,
           layout,
           table,
           first_id,
           out.as<To>(),
           m,
           is_wide(out.data(), row_bytes(out)));
  });
}

}  // namespace testbed::cuda
