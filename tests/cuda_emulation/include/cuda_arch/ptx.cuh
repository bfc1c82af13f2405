// What kernels/cuda/real/cuda_arch/ptx.cuh does by inline PTX, for the emulation; tested against
// the layouts that the PTX ISA documents.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "cuda_arch/device.cuh"
#include "kernels/base/dtype.hpp"

namespace testbed::cuda {

constexpr unsigned emulated_all_lanes = 0xffffffffU;

// Of the element i (0 or 1) in a register.
inline float bf16_of(uint32_t pair, unsigned i) {
  return as_float((i == 0 ? pair << 16 : pair & 0xffff0000U));
}

struct EmulatedMma {
  uint32_t a[4];
  uint32_t b[2];
};
struct EmulatedMmaSums {
  float d[4];
};
// All of the product at once: A [16, 16], B [16, 8] from the lanes' fragments; then each lane's
// four sums.
inline void multiply_fragments(emulation::Meeting& meeting) {
  float a[16][16];
  float b[16][8];
  float d[16][8] = {};
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto mine = meeting.get<EmulatedMma>(lane);
    const unsigned g = lane / 4;
    const unsigned t = lane % 4;
    for (unsigned r = 0; r < 4; ++r) {
      for (unsigned i = 0; i < 2; ++i) {
        a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + i] = bf16_of(mine.a[r], i);
        if (r < 2) b[2 * t + 8 * r + i][g] = bf16_of(mine.b[r], i);
      }
    }
  }
  for (unsigned m = 0; m < 16; ++m) {
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4;
    const unsigned t = lane % 4;
    meeting.put(
        lane,
        EmulatedMmaSums{{d[g][2 * t], d[g][2 * t + 1], d[g + 8][2 * t], d[g + 8][2 * t + 1]}});
  }
}

inline void mma_m16n8k16_bf16(float (&d)[4],
                              const uint32_t (&a)[4],
                              const uint32_t (&b)[2],
                              const emulation::Where& where = emulation::Where::current()) {
  const EmulatedMma mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const auto sums = emulation::exchange<EmulatedMmaSums>(
      emulated_all_lanes, "mma.sync", mine, &multiply_fragments, where);
  for (int i = 0; i < 4; ++i) d[i] += sums.d[i];
}

struct EmulatedMatrices {
  uint32_t r[4];
};
// Lanes brought rows; they leave with their elements of each matrix.
template <bool transposed>
void distribute_matrices(emulation::Meeting& meeting) {
  uint16_t matrices[4][8][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    std::memcpy(matrices[lane / 8][lane % 8], meeting.get<const void*>(lane), 16);
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned row = lane / 4;
    const unsigned column = 2 * (lane % 4);
    EmulatedMatrices out{};
    for (unsigned j = 0; j < 4; ++j) {
      const auto& m = matrices[j];
      const uint32_t low = transposed ? m[column][row] : m[row][column];
      const uint32_t high = transposed ? m[column + 1][row] : m[row][column + 1];
      out.r[j] = low | (high << 16);
    }
    meeting.put(lane, out);
  }
}
template <bool transposed>
void emulated_ldmatrix(uint32_t (&r)[4], const void* row, const emulation::Where& where) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    emulation::fail_thread("ldmatrix of a row that is not 16-byte aligned", where);
  }
  const auto mine = emulation::exchange<EmulatedMatrices>(
      emulated_all_lanes, "ldmatrix.sync", row, &distribute_matrices<transposed>, where);
  for (int j = 0; j < 4; ++j) r[j] = mine.r[j];
}
inline void ldmatrix_x4(uint32_t (&r)[4],
                        const void* row,
                        const emulation::Where& where = emulation::Where::current()) {
  emulated_ldmatrix<false>(r, row, where);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4],
                              const void* row,
                              const emulation::Where& where = emulation::Where::current()) {
  emulated_ldmatrix<true>(r, row, where);
}

inline void copy_async_16(void* shared,
                          const void* global,
                          bool valid,
                          const emulation::Where& where = emulation::Where::current()) {
  emulation::copy_async(shared, global, 16, valid, where);
}
inline void copy_async_commit() { emulation::commit_copies(); }
template <int n_pending>
void copy_async_wait() {
  emulation::wait_for_copies(n_pending);
}

inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d = 0;
  for (unsigned i = 0; i < 2; ++i) {
    // For results that f32 holds exactly: then only the store rounds.
    const double exact = static_cast<double>(bf16_of(a, i)) * bf16_of(b, i) + bf16_of(c, i);
    d |= bf16_bits(static_cast<float>(exact)) << (16 * i);
  }
  return d;
}
inline uint32_t masked_or(uint32_t a, uint32_t mask, uint32_t bits) { return (a & mask) | bits; }
inline float f16_value(uint16_t bits) { return to_f32(f16{bits}); }
template <typename T>
T load_once(const T* p) {
  static_assert(sizeof(T) == 16);
  return *p;
}

inline float exp2_approximate(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126F ? 0.0F : y;
}

inline void store_release_system(uint32_t* flag, uint32_t value) {
  std::atomic_ref<uint32_t>(*flag).store(value, std::memory_order_release);
}
// Flags are polled: whoever sets this one may have to run first.
inline uint32_t load_acquire_system(const uint32_t* flag) {
  emulation::pause_thread();
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(flag)).load(std::memory_order_acquire);
}

inline int64_t global_time_ns() {
  using std::chrono::steady_clock;
  return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
}

}  // namespace testbed::cuda
