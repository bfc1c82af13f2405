// Every version of the generator of random weights gives the same bits: across the lanes of a
// vector, at any start, over the wrap of the index.
#include "runtime/weights/random_fill.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace testbed {
namespace {

constexpr RandomKey key{0x12345678U, 0x9abcdef0U};
constexpr float scale = 0.02F / 26754.9F;

std::vector<std::byte> values(RandomFill fill, uint32_t first, int64_t n, DType to) {
  std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(to, n)));
  fill(key, first, n, scale, to, bytes.data());
  return bytes;
}

TEST(RandomFill, VersionsAgreeInEveryBit) {
  const std::vector<RandomFill> versions = random_fill_versions();
  for (const DType to : {DType::F32, DType::BF16}) {
    for (const uint32_t first : {0U, 5U, 0xffffffe0U}) {
      for (const int64_t n : {0, 1, 15, 64, 1000}) {
        const auto expected = values(versions.back(), first, n, to);
        for (const RandomFill fill : versions) EXPECT_EQ(values(fill, first, n, to), expected);
      }
    }
  }
}

TEST(RandomFill, BF16IsF32Rounded) {
  constexpr int64_t n = 100;
  const RandomFill fill = random_fill_versions().front();
  const auto wide = values(fill, 0, n, DType::F32);
  const auto narrow = values(fill, 0, n, DType::BF16);
  for (int64_t i = 0; i < n; ++i) {
    float x = 0.0F;
    bf16 y{};
    std::memcpy(&x, wide.data() + 4 * i, sizeof(x));
    std::memcpy(&y, narrow.data() + 2 * i, sizeof(y));
    EXPECT_EQ(to_bf16(x).bits, y.bits) << i;
  }
}

// The sample's deviation is within 4 of its own standard errors: of n values of a triangular
// distribution (kurtosis 2.4) that is sigma * sqrt((2.4 - 1) / (4 n)), and of the mean
// sigma/sqrt(n).
TEST(RandomFill, HasTheStatedMoments) {
  constexpr int64_t n = 1 << 16;
  std::vector<float> sample(n);
  random_fill_versions().front()(
      key, 7, n, 1.0F, DType::F32, reinterpret_cast<std::byte*>(sample.data()));
  double sum = 0.0;
  double squares = 0.0;
  for (const float x : sample) {
    sum += static_cast<double>(x);
    squares += static_cast<double>(x) * static_cast<double>(x);
  }
  EXPECT_LT(std::abs(sum / n), 4.0 * triangular_std / std::sqrt(n));
  EXPECT_LT(std::abs(std::sqrt(squares / n) - triangular_std),
            4.0 * triangular_std * std::sqrt(1.4 / (4.0 * n)));
}

}  // namespace
}  // namespace testbed
