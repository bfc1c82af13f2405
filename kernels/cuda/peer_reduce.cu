#include <algorithm>

#include "kernels/cuda/norm_code.cuh"
#include "kernels/cuda/peer_reduce.hpp"

namespace testbed::cuda {
namespace {

constexpr int threads = 512;
static_assert(piece == peer_piece && most_norm_columns == peer_norm_columns);

template <typename T>
__device__ inline T* half_of(const PeerMemory& m, int rank, uint32_t call) {
  return reinterpret_cast<T*>(m.regions[rank] + (call % 2) * m.capacity_bytes);
}

// This launch's number. finish_call() after the first round of flags.
__device__ inline uint32_t start_call(const PeerMemory& m) {
  return m.state->calls[blockIdx.x] + 1;
}
// Blocks that the launch does not have are counted by those it has: all counts stay equal.
__device__ inline void finish_call(const PeerMemory& m, uint32_t call) {
  const unsigned step = gridDim.x * blockDim.x;
  for (unsigned b = blockIdx.x + threadIdx.x * gridDim.x; b < max_peer_blocks; b += step) {
    m.state->calls[b] = call;
  }
}

// The flag of one rank's block, in the memory of another.
__device__ inline uint32_t* flag_of(const PeerMemory& m, int owner, int round, int from) {
  return m.flags[owner] + (static_cast<int64_t>(round) * max_peer_blocks + blockIdx.x) * max_peers +
         from;
}

// Returns when the flag has reached `call`, or when waiting has become pointless.
__device__ inline void wait_for(const PeerMemory& m,
                                const uint32_t* flag,
                                uint32_t call,
                                int peer) {
  constexpr unsigned spins = 64;  // between looks at the clock
  const int64_t begin = global_time_ns();
  for (unsigned i = 1;; ++i) {
    // A peer may be a call ahead, not two: that one needs this rank's flag.
    if (load_acquire_system(flag) - call <= 1) return;
    if (i % spins != 0) continue;
    if (load_acquire_system(&m.state->given_up) != 0) return;
    if (global_time_ns() - begin > m.deadline_ns) {
      store_release_system(m.missing + peer, 1);
      store_release_system(&m.state->given_up, 1);
      return;
    }
    __nanosleep(100);
  }
}

// What the block has written to its region is seen by its twins on the other ranks afterwards, and
// what they wrote by it.
__device__ inline void meet(const PeerMemory& m, int round, uint32_t call) {
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < m.size && peer != m.rank) {
    store_release_system(flag_of(m, peer, round, m.rank), call);
    wait_for(m, flag_of(m, m.rank, round, peer), call, peer);
  }
  __syncthreads();
}

// Elements of piece i of n.
__device__ inline int piece_size(int64_t n, int64_t i) {
  const int64_t left = n - i * piece;
  return left < piece ? static_cast<int>(left) : piece;
}

// sum += a rank's piece; the first takes its place.
template <typename T>
__device__ inline void add_part(Piece<T> bits, bool first, float (&sum)[piece]) {
  float part[piece];
  unpack(bits, part);
  for (int j = 0; j < piece; ++j) sum[j] = first ? part[j] : sum[j] + part[j];
}

// A piece of the sum, from element `at` on. All reads are on their way before the first is used.
// Regions hold whole pieces: what is behind a payload's end is read and summed, but not stored.
template <typename T>
__device__ inline void sum_piece(const PeerMemory& m,
                                 uint32_t call,
                                 int64_t at,
                                 float (&sum)[piece]) {
  Piece<T> parts[max_peers];
#pragma unroll
  for (int r = 0; r < max_peers; ++r) {
    if (r < m.size) parts[r] = load_whole(half_of<T>(m, r, call) + at);
  }
#pragma unroll
  for (int r = 0; r < max_peers; ++r) {
    if (r < m.size) add_part(parts[r], r == 0, sum);
  }
}

// A payload of n elements. Its end need not fill a piece, nor its address be aligned (wide); the
// region's is.
template <typename T>
struct Payload {
  T* x;
  int64_t n;
  int64_t wide;  // not bool: no padding in an argument
};

template <typename T>
__device__ inline void copy_to_region(const Payload<T>& p, T* region, int64_t i) {
  const Piece<T> bits = load_piece(p.x + i * piece, piece_size(p.n, i), p.wide != 0);
  store_piece(region + i * piece, piece, true, bits);
}

// Reads x, writes the region: S bytes each in HBM (or L2). Reads (n-1) S over links, writes x.
// Bound by latency up to some 100 KiB, by the links beyond.
template <typename T>
__global__ void __launch_bounds__(threads) one_shot_kernel(PeerMemory m, Payload<T> p) {
  const uint32_t call = start_call(m);
  T* mine = half_of<T>(m, m.rank, call);
  const int64_t n_pieces = (p.n + piece - 1) / piece;
  const int64_t first = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * threads;
  for (int64_t i = first; i < n_pieces; i += step) copy_to_region(p, mine, i);
  meet(m, 0, call);
  finish_call(m, call);
  for (int64_t i = first; i < n_pieces; i += step) {
    float sum[piece];
    sum_piece<T>(m, call, i * piece, sum);
    store_values(p.x + i * piece, piece_size(p.n, i), p.wide != 0, sum);
  }
}

// A block has the same part of every slice, so that it waits for its twins only. The sum of a slice
// takes the place of its owner's contribution, which no one else reads.
// Reads x, writes the region; over links (n-1)/n S of contributions, then as much of sums.
template <typename T>
__global__ void __launch_bounds__(threads) two_shot_kernel(PeerMemory m, Payload<T> p) {
  const uint32_t call = start_call(m);
  T* mine = half_of<T>(m, m.rank, call);
  const int64_t n_pieces = (p.n + piece - 1) / piece;
  const int64_t offset = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * threads;
  for (int r = 0; r < m.size; ++r) {
    const IndexRange slice = peer_slice(n_pieces, m.size, r);
    for (int64_t i = slice.begin + offset; i < slice.end; i += step) copy_to_region(p, mine, i);
  }
  meet(m, 0, call);
  finish_call(m, call);
  const IndexRange own = peer_slice(n_pieces, m.size, m.rank);
  for (int64_t i = own.begin + offset; i < own.end; i += step) {
    float sum[piece];
    sum_piece<T>(m, call, i * piece, sum);
    store_values(mine + i * piece, piece, true, sum);
    store_values(p.x + i * piece, piece_size(p.n, i), p.wide != 0, sum);
  }
  meet(m, 1, call);
  for (int away = 1; away < m.size; ++away) {
    const int r = (m.rank + away) % m.size;  // not all at the same rank first
    const IndexRange slice = peer_slice(n_pieces, m.size, r);
    const T* theirs = half_of<T>(m, r, call);
    for (int64_t i = slice.begin + offset; i < slice.end; i += step) {
      const Piece<T> sum = load_whole(theirs + i * piece);
      store_piece(p.x + i * piece, piece_size(p.n, i), p.wide != 0, sum);
    }
  }
}

template <typename T>
struct AddNorm {
  const T* partial;     // [n_rows, d]
  T* residual;          // [n_rows, d]
  const float* weight;  // [d]
  T* out;               // [n_rows, d]
  int64_t n_rows;
  int64_t d;
};

// A row's pieces of all ranks, those of this thread, to shared memory [size, d]: past the
// registers, so that all are on their way at once.
template <typename T, int n_pieces>
__device__ inline void fetch_parts(
    const PeerMemory& m, uint32_t call, int64_t row, int64_t d, T* parts) {
  for (int p = 0; p < n_pieces; ++p) {
    if (norm_count(p, d) == 0) continue;
    for (int r = 0; r < m.size; ++r) {
      const T* from = half_of<T>(m, r, call) + row * d + norm_column(p);
      T* to = parts + r * d + norm_column(p);
      for (int i = 0; i < piece; i += per_access<T>) copy_async_16(to + i, from + i, true);
    }
  }
  copy_async_commit();
  copy_async_wait<0>();
}

// A block has whole rows, in the threads' order of norm_code.cuh: a single row is one SM's, which
// receives (n-1) d elements. Reads partial, residual and (n-1) S over links, writes the region,
// residual and out; the sum stays in registers.
template <typename T, int n_pieces>
__global__ void __launch_bounds__(most_norm_threads)
    one_shot_norm_kernel(PeerMemory m, AddNorm<T> a, float eps) {
  auto* scratch = dynamic_shared<float>();               // [warp_size]
  T* parts = reinterpret_cast<T*>(scratch + warp_size);  // [size, d]
  const uint32_t call = start_call(m);
  T* mine = half_of<T>(m, m.rank, call);
  for (int64_t row = blockIdx.x; row < a.n_rows; row += gridDim.x) {
    for (int p = 0; p < n_pieces; ++p) {
      if (norm_count(p, a.d) == 0) continue;  // else whole
      const int64_t at = row * a.d + norm_column(p);
      store_piece(mine + at, piece, true, load_whole(a.partial + at));
    }
  }
  meet(m, 0, call);
  finish_call(m, call);
  for (int64_t row = blockIdx.x; row < a.n_rows; row += gridDim.x) {
    fetch_parts<T, n_pieces>(m, call, row, a.d, parts);
    float v[n_pieces][piece] = {};
#pragma unroll
    for (int p = 0; p < n_pieces; ++p) {
      if (norm_count(p, a.d) == 0) continue;
      for (int r = 0; r < m.size; ++r) {
        add_part(load_whole<T>(parts + r * a.d + norm_column(p)), r == 0, v[p]);
      }
      T* const residual = a.residual + row * a.d + norm_column(p);
      float before[piece];
      unpack(load_whole<T>(residual), before);
      for (int j = 0; j < piece; ++j) {
        v[p][j] = rounded(mine, before[j] + rounded(mine, v[p][j]));
      }
      store_values(residual, piece, true, v[p]);
    }
    const float factor = inverse_rms(norm_sum_squares(v, scratch), a.d, eps);
    store_norm(v, factor, a.weight, a.d, true, a.out + row * a.d);
    __syncthreads();  // scratch is used again
  }
}

// Blocks for pieces of which n_parallel are taken by a thread together.
LaunchShape shape_for(const PeerMemory& memory, TensorView x, int64_t n_parallel) {
  CHECK(x.n_bytes() <= memory.capacity_bytes && x.n_elements() > 0);
  const int64_t n_pieces = divide_up(x.n_elements(), piece);
  const int64_t blocks = divide_up(divide_up(n_pieces, n_parallel), threads);
  return {dim3(static_cast<unsigned>(std::min(blocks, memory.max_blocks))), dim3(threads)};
}

template <typename T>
Payload<T> payload(TensorView x) {
  return {.x = x.as<T>(), .n = x.n_elements(), .wide = is_wide(x.data()) ? 1 : 0};
}

}  // namespace

void one_shot_all_reduce(Queue& queue, const PeerMemory& memory, TensorView x) {
  const LaunchShape shape = shape_for(memory, x, 1);
  with_type(x.dtype(), [&]<typename T>(T*) {
    launch(queue, &one_shot_kernel<T>, shape, memory, payload<T>(x));
  });
}

void two_shot_all_reduce(Queue& queue, const PeerMemory& memory, TensorView x) {
  const LaunchShape shape = shape_for(memory, x, memory.size);
  with_type(x.dtype(), [&]<typename T>(T*) {
    launch(queue, &two_shot_kernel<T>, shape, memory, payload<T>(x));
  });
}

void one_shot_add_rms_norm(Queue& queue,
                           const PeerMemory& memory,
                           TensorView partial,
                           TensorView residual,
                           TensorView weight,
                           float eps,
                           TensorView out) {
  const int64_t d = partial.shape()[-1];
  const int64_t n_rows = partial.n_rows();
  CHECK(partial.n_bytes() <= memory.capacity_bytes && peer_norm_fits(partial, memory.size) &&
        n_rows > 0);
  for (const TensorView x : {residual, out}) {
    CHECK(x.dtype() == partial.dtype() && x.n_elements() == partial.n_elements());
  }
  CHECK(weight.dtype() == DType::F32 && weight.n_elements() == d);
  for (const TensorView x : {partial, residual, weight, out}) CHECK(is_wide(x.data()));
  const auto blocks = static_cast<unsigned>(std::min(n_rows, memory.max_blocks));
  const auto start = [&]<typename T, int n_pieces>(T*, std::integral_constant<int, n_pieces>) {
    const AddNorm<T> rows{.partial = partial.as<T>(),
                          .residual = residual.as<T>(),
                          .weight = weight.as<float>(),
                          .out = out.as<T>(),
                          .n_rows = n_rows,
                          .d = d};
    const LaunchShape shape{
        dim3(blocks),
        dim3(norm_threads(d, n_pieces)),
        warp_size * sizeof(float) + static_cast<size_t>(memory.size * row_bytes(partial))};
    launch(queue, &one_shot_norm_kernel<T, n_pieces>, shape, memory, rows, eps);
  };
  with_type(partial.dtype(), [&]<typename T>(T* type) {
    with_norm_pieces(d, [&](auto n_pieces) { start(type, n_pieces); });
  });
}

}  // namespace testbed::cuda
