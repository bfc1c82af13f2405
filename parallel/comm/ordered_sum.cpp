#include "parallel/comm/ordered_sum.hpp"

#include <algorithm>

#include "kernels/base/runnable_versions.hpp"

namespace testbed {
namespace {

// So that the loops are compiled anew for each version's instruction set. (Not a file each with
// flags of its own: an inline function from a header could then leak into the whole program.)
#define TESTBED_IN_EACH_VERSION __attribute__((always_inline)) inline

TESTBED_IN_EACH_VERSION float widen(float x) { return x; }
TESTBED_IN_EACH_VERSION float widen(bf16 x) { return to_f32(x); }
TESTBED_IN_EACH_VERSION void store(float x, float& out) { out = x; }
TESTBED_IN_EACH_VERSION void store(float x, bf16& out) { out = to_bf16(x); }

// In blocks whose sums stay in the first-level cache. The first and the last addition also read and
// write memory, so that two parts take one pass.
template <typename T, typename Out>
TESTBED_IN_EACH_VERSION void sum_blocks(const std::vector<const void*>& parts,
                                        Out* out,
                                        int64_t n) {
  constexpr int64_t block = 1024;
  float sum[block];
  const size_t last = parts.size() - 1;
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t size = std::min(block, n - begin);
    const T* first = static_cast<const T*>(parts[0]) + begin;
    const T* second = static_cast<const T*>(parts[1]) + begin;
    Out* sums = out + begin;
    if (last == 1) {
      for (int64_t i = 0; i < size; ++i) store(widen(first[i]) + widen(second[i]), sums[i]);
      continue;
    }
    for (int64_t i = 0; i < size; ++i) sum[i] = widen(first[i]) + widen(second[i]);
    for (size_t r = 2; r < last; ++r) {
      const T* part = static_cast<const T*>(parts[r]) + begin;
      for (int64_t i = 0; i < size; ++i) sum[i] += widen(part[i]);
    }
    const T* part = static_cast<const T*>(parts[last]) + begin;
    for (int64_t i = 0; i < size; ++i) store(sum[i] + widen(part[i]), sums[i]);
  }
}

TESTBED_IN_EACH_VERSION void sum(const std::vector<const void*>& parts,
                                 void* out,
                                 int64_t n,
                                 DType dtype) {
  CHECK(parts.size() >= 2);
  if (dtype == DType::F32) {
    sum_blocks<float>(parts, static_cast<float*>(out), n);
  } else {
    CHECK(dtype == DType::BF16);
    sum_blocks<bf16>(parts, static_cast<bf16*>(out), n);
  }
}

#undef TESTBED_IN_EACH_VERSION

void portable(const std::vector<const void*>& parts, void* out, int64_t n, DType dtype) {
  sum(parts, out, n, dtype);
}
__attribute__((target("avx2"))) void avx2(const std::vector<const void*>& parts,
                                          void* out,
                                          int64_t n,
                                          DType dtype) {
  sum(parts, out, n, dtype);
}
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void avx512(
    const std::vector<const void*>& parts, void* out, int64_t n, DType dtype) {
  sum(parts, out, n, dtype);
}

}  // namespace

std::vector<SumInOrder> sum_in_order_versions() {
  return runnable_versions<SumInOrder>(avx512, avx2, portable);
}

void sum_in_order(const std::vector<const void*>& parts, void* out, int64_t n, DType dtype) {
  static const SumInOrder best = sum_in_order_versions().front();
  best(parts, out, n, dtype);
}

void sum_in_order_f32(const std::vector<const void*>& parts, float* out, int64_t n, DType dtype) {
  CHECK(parts.size() >= 2);
  if (dtype == DType::F32) return sum_in_order(parts, out, n, dtype);
  CHECK(dtype == DType::BF16);
  sum_blocks<bf16>(parts, out, n);
}

}  // namespace testbed
