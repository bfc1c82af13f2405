// Intrinsics that are ordinary functions on the host. Included by device.cuh.
#pragma once

template <typename T>
T atomicAdd(T* p, T x) {
  return std::atomic_ref<T>(*p).fetch_add(x, std::memory_order_relaxed);
}
template <typename T>
T atomicSub(T* p, T x) {
  return std::atomic_ref<T>(*p).fetch_sub(x, std::memory_order_relaxed);
}
template <typename T>
T atomicExch(T* p, T x) {
  return std::atomic_ref<T>(*p).exchange(x, std::memory_order_relaxed);
}
template <typename T>
T atomicCAS(T* p, T expected, T x) {
  std::atomic_ref<T>(*p).compare_exchange_strong(expected, x, std::memory_order_relaxed);
  return expected;
}
template <typename T>
T atomicMax(T* p, T x) {
  T old = std::atomic_ref<T>(*p).load(std::memory_order_relaxed);
  while (old < x && !std::atomic_ref<T>(*p).compare_exchange_weak(old, x)) {
  }
  return old;
}
template <typename T>
T atomicMin(T* p, T x) {
  T old = std::atomic_ref<T>(*p).load(std::memory_order_relaxed);
  while (x < old && !std::atomic_ref<T>(*p).compare_exchange_weak(old, x)) {
  }
  return old;
}
template <typename T>
T atomicOr(T* p, T x) {
  return std::atomic_ref<T>(*p).fetch_or(x, std::memory_order_relaxed);
}
template <typename T>
T atomicAnd(T* p, T x) {
  return std::atomic_ref<T>(*p).fetch_and(x, std::memory_order_relaxed);
}

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __nanosleep(unsigned /*ns*/) { emulation::pause_thread(); }
// Of an SM whose clock has fallen to 10 MHz: ticks are no measure of time. Every look takes one.
inline long long clock64() {
  static std::atomic<long long> n_looks{0};
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  return now.count() / 100 + ++n_looks;
}

// Cached and streaming accesses.
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, T x) {
  *p = x;
}
template <typename T>
void __stcg(T* p, T x) {
  *p = x;
}

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0F / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::lrintf(x)); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }

// CUDA's min and max take two of any arithmetic type.
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
