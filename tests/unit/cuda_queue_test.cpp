// The queue: a graph does what its section's calls would do, whatever changes from step to step.
#include <gtest/gtest.h>

#include "kernels/cuda/queue.hpp"
#include "tests/unit/cuda_rows_support.hpp"

namespace testbed::cuda {
namespace {

constexpr uint64_t key = 7;

Tensor ones(int64_t n) {
  Tensor x(DType::F32, {n});
  std::fill_n(x.as<float>(), n, 1.0F);
  return x;
}

// Steps of equal key that scale by a value in the calls: what was captured is of another one.
TEST(CudaQueue, a_section_whose_calls_change_is_captured_anew) {
  Queue queue;
  const OnDevice x(ones(40));
  float expected = 1.0F;
  for (const float factor : {2.0F, 2.0F, 2.0F, 4.0F, 4.0F, 2.0F}) {
    queue.section(key, [&] { scale(queue, x, factor); });
    expected *= factor;
    EXPECT_EQ(at(x.download(queue), 39), expected);
  }
  EXPECT_EQ(queue.stats().captures, 1);    // the second step
  EXPECT_EQ(queue.stats().recaptures, 2);  // the first of 4, and 2 again
  EXPECT_EQ(queue.stats().replays, 2);
}

TEST(CudaQueue, fewer_calls_than_were_captured_are_captured_anew) {
  Queue queue;
  const OnDevice x(ones(8));
  float expected = 1.0F;
  for (const int n_calls : {2, 2, 1, 0, 2}) {
    queue.section(key, [&] {
      for (int i = 0; i < n_calls; ++i) scale(queue, x, 2.0F);
    });
    for (int i = 0; i < n_calls; ++i) expected *= 2.0F;
    EXPECT_EQ(at(x.download(queue), 0), expected) << n_calls;
  }
}

// An array may grow to the next power of two where it lies, and what follows it stays; then it
// moves.
TEST(CudaQueue, growing_arguments_reach_the_kernels_of_a_graph) {
  Queue queue;
  const Tensor table = random(DType::F32, {200, 8}, 1);
  const OnDevice on_device(table);
  for (const int64_t n_rows : {70, 75, 80, 85, 90, 140, 150}) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < n_rows; ++i) rows.push_back((i * 7 + n_rows) % 200);
    const OnDevice first(ones(8 * 64).view().reshaped({64, 8}));
    const OnDevice last(ones(8).view().reshaped({1, 8}));
    queue.section(key, [&] {
      gather_rows(queue, on_device, std::span(rows).first(64), first);
      gather_rows(queue, on_device, std::span(rows).last(1), last);
    });
    const Tensor got = first.download(queue);
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_EQ(at(got, i * 8 + 5), at(table, rows[static_cast<size_t>(i)] * 8 + 5));
    }
    EXPECT_EQ(at(last.download(queue), 3), at(table, rows.back() * 8 + 3));
  }
}

// Calls on the tape use memory that an op has replaced by a larger piece meanwhile.
TEST(CudaQueue, memory_that_is_replaced_within_a_section_lives_until_its_calls_are_issued) {
  Queue queue;
  const OnDevice out(ones(16));
  Tensor scratch = device_tensor(DType::BF16, {16});
  queue.section(key, [&] {
    scale(queue, out, 0.5F);
    convert(queue, out, scratch);
    convert(queue, scratch, out);
    queue.retire(std::exchange(scratch, device_tensor(DType::BF16, {32})));
  });
  EXPECT_EQ(at(out.download(queue), 15), 0.5);
}

TEST(CudaQueue, a_section_that_fails_leaves_the_tape) {
  Queue queue;
  EXPECT_THROW(queue.section(key, [] { throw InternalError("in the middle of a step"); }),
               InternalError);
  EXPECT_FALSE(queue.taping());
}

}  // namespace
}  // namespace testbed::cuda
