// Tensors that share huge pages: zeroed, apart, and alive as long as they are held.
#include "kernels/base/huge_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace testbed {
namespace {

void fill(const Tensor& tensor, int value) {
  std::memset(tensor.data(), value, static_cast<size_t>(tensor.n_bytes()));
}

bool holds(const Tensor& tensor, int8_t value) {
  const auto* begin = tensor.as<int8_t>();
  return std::all_of(begin, begin + tensor.n_bytes(), [&](int8_t byte) { return byte == value; });
}

// More than a chunk's 64 MiB in all, one of them alone: only what is written is touched.
TEST(HugePages, give_zeroed_tensors_that_lie_apart) {
  std::vector<Tensor> tensors;
  tensors.reserve(8);
  for (const int64_t n_bytes : {1, 63, 64, 65, 100'000, 5 << 20, 1, 3 << 20}) {
    tensors.push_back(in_huge_pages(DType::I8, {n_bytes}));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().data()) % 64, 0U);
    EXPECT_TRUE(holds(tensors.back(), 0)) << n_bytes;
    fill(tensors.back(), static_cast<int>(tensors.size()));
  }
  const Tensor large = in_huge_pages(DType::I8, {int64_t{80} << 20});
  large.as<int8_t>()[large.n_elements() - 1] = 1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(holds(tensors[i], static_cast<int8_t>(i + 1))) << i;
  }
}

TEST(HugePages, outlive_those_that_share_them) {
  Tensor first = in_huge_pages(DType::I8, {1000});
  Tensor second = in_huge_pages(DType::I8, {1000});
  fill(second, 7);
  first = Tensor();
  EXPECT_TRUE(holds(second, 7));
  const Tensor moved = std::move(second);
  EXPECT_TRUE(holds(moved, 7));
  EXPECT_EQ(in_huge_pages(DType::F32, {0, 5}).n_elements(), 0);
}

TEST(HugePages, may_be_taken_by_any_thread) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int8_t value = 1; value <= 4; ++value) {
    threads.emplace_back([value] {
      for (int i = 0; i < 50; ++i) {
        const Tensor tensor = in_huge_pages(DType::I8, {1000 + i});
        EXPECT_TRUE(holds(tensor, 0));
        fill(tensor, value);
        EXPECT_TRUE(holds(tensor, value));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace testbed
