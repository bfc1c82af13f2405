// All inline PTX. Its emulated twin (tests/cuda_emulation) is tested against the fragment layouts
// that the PTX ISA documents (version 9.0, "Matrix multiply-accumulate operation using mma").
#pragma once

#include <cstdint>

namespace testbed::cuda {

// d[16x8] += a[16x16] b[16x8], bf16 operands, f32 sums. With g = lane / 4, t = lane % 4:
//   a[0] = A[g][2t, 2t+1], a[1] = A[g+8][2t, 2t+1], a[2] = A[g][2t+8, 2t+9], a[3] = A[g+8][2t+8,
//   2t+9] b[0] = B[2t, 2t+1][g], b[1] = B[2t+8, 2t+9][g] d[0] = D[g][2t], d[1] = D[g][2t+1], d[2] =
//   D[g+8][2t], d[3] = D[g+8][2t+1]
// the lower index in the low half of a register. All lanes of the warp take part.
__device__ inline void mma_m16n8k16_bf16(float (&d)[4],
                                         const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address (in shared memory, 16-byte
// aligned) of row i % 8 of matrix i / 8. r[j] of a lane: row lane / 4, elements 2 (lane % 4) and
// the next of matrix j. _trans: of the transposed matrices.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes from global to shared memory, past the registers; zeros if not valid (the address is
// then not read). Both 16-byte aligned.
__device__ inline void copy_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async_commit() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
// Until at most n_pending of this thread's last groups are on their way.
template <int n_pending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(n_pending) : "memory");
}

// a b + c of two bf16 in each register, each result rounded once; subnormal numbers are kept.
__device__ inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// (a & mask) | bits, in one instruction: constants are left in registers.
__device__ inline uint32_t masked_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}

// The f16 with these bits.
__device__ inline float f16_value(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// 16 bytes that nobody reads again soon: they do not displace others from the caches.
template <typename T>
__device__ inline T load_once(const T* p) {
  static_assert(sizeof(T) == 16);
  uint32_t w[4];
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
      : "l"(p));
  T value;
  memcpy(&value, w, sizeof value);
  return value;
}

// 2^x with a relative error of at most 2^-22.5; results below 2^-126 are zeros.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Flags between devices (and the host): what was written before the release is seen after the
// acquire.
__device__ inline void store_release_system(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(flag), "r"(value) : "memory");
}
__device__ inline uint32_t load_acquire_system(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// Nanoseconds from some point on, whatever the clock of the SM; in steps of up to a microsecond.
__device__ inline int64_t global_time_ns() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns) : : "memory");
  return ns;
}

}  // namespace testbed::cuda
