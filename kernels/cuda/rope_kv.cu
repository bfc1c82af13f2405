// Rotary positions, and writes to the KV cache. Bound: memory.
#include "kernels/cuda/row_code.cuh"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

constexpr int rope_threads = 128;
constexpr int64_t block_pieces = 2 * rope_threads;  // of eight pairs

// Eight pairs of a head; `half` pairs in all.
template <bool interleaved>
struct Pairs {
  int64_t half;
  int64_t first;  // pair
  int count;
  bool wide;

  // Of the lower and upper elements, or of the first four and the last four pairs.
  __device__ int64_t low() const { return interleaved ? 2 * first : first; }
  __device__ int64_t high() const { return interleaved ? 2 * first + piece : half + first; }
  __device__ int n_low() const { return interleaved ? min(piece, 2 * count) : count; }
  __device__ int n_high() const { return interleaved ? max(0, 2 * count - piece) : count; }

  // (a, b) of pair j, in the halves as loaded.
  __device__ static float& a(float (&low)[piece], float (&high)[piece], int j) {
    if constexpr (!interleaved) return low[j];
    return j < piece / 2 ? low[2 * j] : high[2 * j - piece];
  }
  __device__ static float& b(float (&low)[piece], float (&high)[piece], int j) {
    if constexpr (!interleaved) return high[j];
    return j < piece / 2 ? low[2 * j + 1] : high[2 * j + 1 - piece];
  }

  template <typename T>
  __device__ void rotate(T* head, const float* cosine, const float* sine) const {
    const Piece<T> low_bits = load_piece(head + low(), n_low(), wide);
    const Piece<T> high_bits = load_piece(head + high(), n_high(), wide);
    float x[piece];
    float y[piece];
    unpack(low_bits, x);
    unpack(high_bits, y);
    for (int j = 0; j < piece; ++j) {
      const int64_t i = first + (j < count ? j : 0);
      const float before = a(x, y, j);
      const float after = b(x, y, j);
      a(x, y, j) = before * cosine[i] - after * sine[i];
      b(x, y, j) = after * cosine[i] + before * sine[i];
    }
    store_values(head + low(), n_low(), wide, x);
    store_values(head + high(), n_high(), wide, y);
  }
};

// Rotates x [m, n_heads, 2 half] in place: block (i, c) takes row i, every gridDim.y-th stretch of
// its pieces. Reads and writes x once. The angles are computed here, in double like the
// reference's: once per block, a few percent of the time that its elements take, where a table of
// them would cost the host m half sines per step.
template <typename T, bool interleaved>
__global__ void __launch_bounds__(rope_threads) rotate_rows(T* x,
                                                            const int64_t* positions,
                                                            const double* inv_freq,
                                                            double multiplier,
                                                            int64_t n_heads,
                                                            int64_t half,
                                                            bool wide) {
  auto* const cosine = dynamic_shared<float>();
  float* const sine = cosine + half;
  const int64_t row = blockIdx.x;
  const auto position = static_cast<double>(positions[row]);
  for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
    double s;
    double c;
    sincos(position * inv_freq[i], &s, &c);
    sine[i] = static_cast<float>(s * multiplier);
    cosine[i] = static_cast<float>(c * multiplier);
  }
  __syncthreads();
  const int64_t head_pieces = (half + piece - 1) / piece;
  const int64_t n_pieces = n_heads * head_pieces;
  const int64_t step = int64_t{gridDim.y} * blockDim.x;
  for (int64_t p = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; p < n_pieces; p += step) {
    const int64_t head = p / head_pieces;
    const int64_t first = p % head_pieces * piece;
    const Pairs<interleaved> pairs{half, first, count_of(half - first), wide};
    pairs.rotate(x + (row * n_heads + head) * 2 * half, cosine, sine);
  }
}

// Vectors of one token and head, in units of two bytes: where they are and where they go.
struct KvPart {
  const uint16_t* x;
  uint16_t* cache;
  int64_t dim;
};

// k and v [m, n_kv_heads, dim] to the cache's [n_blocks, n_kv_heads, block_size, dim] at slots [m];
// -1: nowhere. Reads and writes each once; v's columns follow k's, whose number is rounded up to
// whole pieces (k_columns).
__global__ void write_vectors(KvPart k,
                              KvPart v,
                              int64_t k_columns,
                              const int64_t* slots,
                              int64_t n_vectors,
                              uint32_t n_kv_heads,
                              uint32_t block_size,
                              bool wide) {
  for_pieces(n_vectors, k_columns + v.dim, [&](int64_t vector, int64_t column, int /*count*/) {
    const uint32_t token = static_cast<uint32_t>(vector) / n_kv_heads;
    const int64_t slot = slots[token];
    if (slot < 0) return;
    const uint32_t head = static_cast<uint32_t>(vector) - token * n_kv_heads;
    const uint32_t block = static_cast<uint32_t>(slot) / block_size;
    const uint32_t offset = static_cast<uint32_t>(slot) - block * block_size;
    const int64_t to = (int64_t{block} * n_kv_heads + head) * block_size + offset;
    const KvPart& part = column < k_columns ? k : v;
    const int64_t at = column < k_columns ? column : column - k_columns;
    const int count = count_of(part.dim - at);
    store_piece(part.cache + to * part.dim + at,
                count,
                wide,
                load_piece(part.x + vector * part.dim + at, count, wide));
  });
}

KvPart part_of(TensorView x, int64_t dim, const KvView& kv, void* cache) {
  CHECK(x.dtype() == kv.dtype && x.row_elements() == kv.n_kv_heads * dim);
  const int64_t units = dtype_bytes(kv.dtype, dim) / static_cast<int64_t>(sizeof(uint16_t));
  return {static_cast<const uint16_t*>(x.data()), static_cast<uint16_t*>(cache), units};
}

bool all_wide(const KvPart& part) { return is_wide(part.x, 2 * part.dim) && is_wide(part.cache); }

}  // namespace

void rope(Queue& queue,
          TensorView x,
          std::span<const int64_t> positions,
          const RopeFrequencies& frequencies) {
  CHECK(x.shape().rank() == 3 && x.shape()[0] == static_cast<int64_t>(positions.size()));
  const auto half = static_cast<int64_t>(frequencies.inv_freq.size());
  CHECK(x.shape()[2] == 2 * half);
  if (x.n_elements() == 0) return;
  const int64_t* const on_device = queue.arguments().put(positions);
  const double* const inv_freq = queue.arguments().put(frequencies.inv_freq);
  const int64_t n_pieces = x.shape()[1] * divide_up(half, piece);
  const LaunchShape shape{dim3(static_cast<unsigned>(x.n_rows()),
                               static_cast<unsigned>(divide_up(n_pieces, block_pieces))),
                          dim3(rope_threads),
                          static_cast<size_t>(2 * half) * sizeof(float)};
  with_type(x.dtype(), [&]<typename T>(T*) {
    const bool wide = is_wide(x.data(), half * static_cast<int64_t>(sizeof(T)));
    launch(queue,
           frequencies.interleaved ? rotate_rows<T, true> : rotate_rows<T, false>,
           shape,
           x.as<T>(),
           on_device,
           inv_freq,
           frequencies.multiplier,
           x.shape()[1],
           half,
           wide);
  });
}

void write_kv(
    Queue& queue, TensorView k, TensorView v, const KvView& kv, std::span<const int64_t> slots) {
  const auto m = static_cast<int64_t>(slots.size());
  if (m == 0) return;
  CHECK(k.n_rows() == m && (v.empty() || kv.v != nullptr));
  CHECK(kv.n_blocks * kv.block_size <= INT32_MAX && m * kv.n_kv_heads <= INT32_MAX);
  const KvPart k_part = part_of(k, kv.head_dim, kv, kv.k);
  const KvPart v_part = kv.v == nullptr ? KvPart{} : part_of(v, kv.v_dim, kv, kv.v);
  const int64_t k_columns = divide_up(k_part.dim, piece) * piece;
  launch(queue,
         write_vectors,
         row_shape(m * kv.n_kv_heads, k_columns + v_part.dim),
         k_part,
         v_part,
         k_columns,
         queue.arguments().put(slots),
         m * kv.n_kv_heads,
         static_cast<uint32_t>(kv.n_kv_heads),
         static_cast<uint32_t>(kv.block_size),
         all_wide(k_part) && all_wide(v_part));
}

}  // namespace testbed::cuda
