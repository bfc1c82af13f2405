// The closed forms that counters, reports and the simulator share.
#include "kernels/cost.hpp"

#include <gtest/gtest.h>

namespace testbed {
namespace {

TEST(Cost, linear_reads_true_weight_bytes_once) {
  const OpCost cost = linear_cost(3, 5, 7, 5, DType::BF16, DType::F32);
  EXPECT_EQ(cost.flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(cost.weight_bytes, 5 * 7 * 2);
  EXPECT_EQ(linear_cost(3, 5, 7, 0, DType::BF16, DType::F32).model_flops, 0);
}

}  // namespace
}  // namespace testbed
