// What a rank's plan counts on its GPU beside the model.
#include <gtest/gtest.h>

#include "launch/cuda/fixed_memory.hpp"

namespace testbed {
namespace {

constexpr int64_t mib = int64_t{1} << 20;
constexpr int64_t h200_read_buffer = 4 * 60 * mib;

TEST(FixedGpuMemory, holds_workspaces_and_what_the_read_loop_goes_through) {
  EXPECT_EQ(fixed_gpu_bytes({}, h200_read_buffer), (32 + 32 + 240) * mib);
  EXPECT_EQ(fixed_gpu_bytes({}, 0), 64 * mib);
}

TEST(FixedGpuMemory, grows_with_what_groups_map_and_send) {
  const int64_t alone = fixed_gpu_bytes({}, 0);
  // Two halves of 4 MiB, and flags.
  EXPECT_EQ(fixed_gpu_bytes({.tp = 8}, 0) - alone, 8 * mib + cuda::peer_flag_bytes);
  EXPECT_EQ(fixed_gpu_bytes({.cp = 4}, 0) - alone, 2 * 2 * 4 * mib);
  EXPECT_EQ(fixed_gpu_bytes({.pp = 3}, 0) - alone, 3 * 2 * 4 * mib);  // odd: a third lane
  EXPECT_EQ(fixed_gpu_bytes({.dp = 8}, 0), alone);
}

}  // namespace
}  // namespace testbed
