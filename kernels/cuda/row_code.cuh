// What the kernels on rows share: a thread takes eight neighbouring elements of a row at a time: 16
// bytes of bf16, 32 of f32; one by one where rows are not aligned, and at their ends.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"

namespace testbed::cuda {

constexpr int piece = 8;  // elements

// The bits of eight elements, in registers. Loads are apart from conversions, so that several are
// on their way at a time.
template <typename T>
struct Piece {
  static constexpr int n_parts = piece / per_access<T>;
  static constexpr int per_word = 4 / static_cast<int>(sizeof(T));
  Words parts[n_parts] = {};
  __device__ uint32_t& word(int element) {
    return parts[element / per_access<T>].w[element % per_access<T> / per_word];
  }
  __device__ static int shift(int element) { return element % per_word * 16; }
};

__device__ inline uint32_t bits_of(float x) { return as_bits(x); }
__device__ inline uint32_t bits_of(bf16 x) { return x.bits; }
__device__ inline uint32_t bits_of(uint16_t x) { return x; }
__device__ inline void set_bits(float& x, uint32_t bits) { x = as_float(bits); }
__device__ inline void set_bits(bf16& x, uint32_t bits) { x.bits = static_cast<uint16_t>(bits); }
__device__ inline void set_bits(uint16_t& x, uint32_t bits) { x = static_cast<uint16_t>(bits); }

// p is 16-byte aligned.
template <typename T>
__device__ inline Piece<T> load_whole(const T* p) {
  Piece<T> bits;
  for (int i = 0; i < Piece<T>::n_parts; ++i) bits.parts[i] = reinterpret_cast<const Words*>(p)[i];
  return bits;
}
// Zeros behind the first count elements.
template <typename T>
__device__ inline Piece<T> load_some(const T* p, int count) {
  Piece<T> bits;
  for (int j = 0; j < piece; ++j) {
    if (j < count) bits.word(j) |= bits_of(p[j]) << Piece<T>::shift(j);
  }
  return bits;
}
// wide: p is 16-byte aligned.
template <typename T>
__device__ inline Piece<T> load_piece(const T* p, int count, bool wide) {
  return wide && count == piece ? load_whole(p) : load_some(p, count);
}

template <typename T>
__device__ inline void store_piece(T* p, int count, bool wide, Piece<T> bits) {
  if (wide && count == piece) {
    for (int i = 0; i < Piece<T>::n_parts; ++i) reinterpret_cast<Words*>(p)[i] = bits.parts[i];
    return;
  }
  for (int j = 0; j < piece; ++j) {
    if (j < count) set_bits(p[j], bits.word(j) >> Piece<T>::shift(j));
  }
}

__device__ inline void unpack(Piece<float> bits, float (&x)[piece]) {
  for (int j = 0; j < piece; ++j) x[j] = as_float(bits.word(j));
}
__device__ inline void unpack(Piece<bf16> bits, float (&x)[piece]) {
  for (int j = 0; j < piece; j += 2) {
    x[j] = as_float(bits.word(j) << 16);
    x[j + 1] = as_float(bits.word(j) & 0xffff0000U);
  }
}
__device__ inline void pack(const float (&x)[piece], Piece<float>& bits) {
  for (int j = 0; j < piece; ++j) bits.word(j) = as_bits(x[j]);
}
__device__ inline void pack(const float (&x)[piece], Piece<bf16>& bits) {
  for (int j = 0; j < piece; j += 2) bits.word(j) = pack_bf16x2(x[j], x[j + 1]);
}
template <typename T>
__device__ inline void store_values(T* p, int count, bool wide, const float (&x)[piece]) {
  Piece<T> bits;
  pack(x, bits);
  store_piece(p, count, wide, bits);
}

// x as it is after a store.
__device__ inline float rounded(const float* /*type*/, float x) { return x; }
__device__ inline float rounded(const bf16* /*type*/, float x) {
  return as_float(pack_bf16x2(x, 0.0F) << 16);
}

__device__ inline bool is_finite(float x) { return x - x == 0.0F; }

// Elements of the next piece, where `left` of a row are left.
__device__ inline int count_of(int64_t left) {
  return left >= piece ? piece : left > 0 ? static_cast<int>(left) : 0;
}

// body(row, column, count) for this thread's pieces of n_rows rows, launched in row_shape.
template <typename Body>
__device__ inline void for_pieces(int64_t n_rows, int64_t n_columns, const Body& body) {
  const int64_t column = piece * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (column >= n_columns) return;
  const int count = count_of(n_columns - column);
  const int64_t step = int64_t{gridDim.y} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < n_rows; row += step) {
    body(row, column, count);
  }
}

// Small blocks: a single row of 4096 is spread over four SMs.
inline LaunchShape row_shape(int64_t n_rows, int64_t n_columns) {
  constexpr int64_t threads = 128;
  constexpr int64_t most_rows = 65535;  // of a grid
  const int64_t n_pieces = divide_up(n_columns, piece);
  const auto x =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::min(n_pieces, threads))));
  const int64_t y = threads / x;
  return {dim3(static_cast<unsigned>(divide_up(n_pieces, x)),
               static_cast<unsigned>(std::min(divide_up(n_rows, y), most_rows))),
          dim3(static_cast<unsigned>(x), static_cast<unsigned>(y))};
}

// Whether rows of row_bytes from p on can be accessed 16 bytes at a time.
inline bool is_wide(const void* p, int64_t row_bytes = 0) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && row_bytes % 16 == 0;
}

inline int64_t row_bytes(TensorView x) { return dtype_bytes(x.dtype(), x.shape()[-1]); }

// Calls run with a null pointer of the type: F32 or BF16.
template <typename Run>
void with_type(DType dtype, const Run& run) {
  CHECK(dtype == DType::F32 || dtype == DType::BF16);
  if (dtype == DType::F32) {
    run(static_cast<float*>(nullptr));
  } else {
    run(static_cast<bf16*>(nullptr));
  }
}

}  // namespace testbed::cuda
