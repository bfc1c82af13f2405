#include "runtime/weights/random_fill.hpp"

#include "kernels/base/runnable_versions.hpp"

namespace testbed {
namespace {

// So that the loops are compiled anew for each version's instruction set. A value is a product and
// its rounding, and no sum that a version could contract with it.
#define TESTBED_IN_EACH_VERSION __attribute__((always_inline)) inline

TESTBED_IN_EACH_VERSION int32_t triangular(RandomKey key, uint32_t index) {
  uint32_t x = index + key.add;
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x ^= key.flip;  // so that two tensors are not shifted copies of one sequence
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  x ^= x >> 16;
  return static_cast<int32_t>((x & 0xffffU) + (x >> 16)) - 65535;
}

TESTBED_IN_EACH_VERSION void store(float x, float& out) { out = x; }
TESTBED_IN_EACH_VERSION void store(float x, bf16& out) { out = to_bf16(x); }

template <typename T>
TESTBED_IN_EACH_VERSION void fill_with(
    RandomKey key, uint32_t first, int64_t n, float scale, T* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t index = first + static_cast<uint32_t>(i);
    store(static_cast<float>(triangular(key, index)) * scale, out[i]);
  }
}

TESTBED_IN_EACH_VERSION void fill(
    RandomKey key, uint32_t first, int64_t n, float scale, DType to, std::byte* out) {
  if (to == DType::BF16) {
    fill_with(key, first, n, scale, reinterpret_cast<bf16*>(out));
  } else {
    CHECK(to == DType::F32);
    fill_with(key, first, n, scale, reinterpret_cast<float*>(out));
  }
}

#undef TESTBED_IN_EACH_VERSION

void portable(RandomKey key, uint32_t first, int64_t n, float scale, DType to, std::byte* out) {
  fill(key, first, n, scale, to, out);
}
__attribute__((target("avx2"))) void avx2(
    RandomKey key, uint32_t first, int64_t n, float scale, DType to, std::byte* out) {
  fill(key, first, n, scale, to, out);
}
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void avx512(
    RandomKey key, uint32_t first, int64_t n, float scale, DType to, std::byte* out) {
  fill(key, first, n, scale, to, out);
}

}  // namespace

std::vector<RandomFill> random_fill_versions() {
  return runnable_versions<RandomFill>(avx512, avx2, portable);
}

}  // namespace testbed
