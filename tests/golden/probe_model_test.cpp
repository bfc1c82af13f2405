// The model's curves: which points there are, and that they are the model's.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "kernels/cost.hpp"
#include "kernels/sim/op_time.hpp"
#include "runtime/probe/model_curves.hpp"

namespace testbed {
namespace {

ClusterSpec ideal_node(int n_devices) {
  return {.name = "ideal",
          .device = {.name = "ideal",
                     .memory_bytes = int64_t{80} << 30,
                     .memory_bytes_per_s = 1e12,
                     .peak_flops = {{MathType::bf16, 1e14}, {MathType::fp8, 2e14}}},
          .node = {.n_devices = n_devices, .link = {.name = "ideal", .bytes_per_s = 1e11}}};
}

// A group of one needs no network, so this runs without the plugin.
TEST(ModelCurves, ProductsAreTheMeasuredGridInEachDtype) {
  const ClusterSpec cluster = ideal_node(1);
  const ProbeRecord record = model_curves(cluster, 1024);
  EXPECT_TRUE(record.simulated);
  EXPECT_TRUE(record.collectives.empty());
  EXPECT_EQ(record.gemm.size(), 2U * 14 * 20);
  for (const GemmPoint& p : record.gemm) {
    if (p.m != 8192 || p.n != 8192 || p.k != 8192) continue;
    const double peak = p.dtype == "fp8" ? 2e14 : 1e14;
    EXPECT_DOUBLE_EQ(p.us, 1e6 * 2.0 * 8192 * 8192 * 8192 / peak) << p.dtype;
  }
}

TEST(ModelCurves, AttentionIsAsFarAsTheCacheFits) {
  ClusterSpec cluster = ideal_node(1);
  const auto n_longest = [&] {
    int n = 0;
    for (const AttentionPoint& p : model_curves(cluster, 1024).attention)
      n += p.phase == AttentionPhase::decode && p.context == 131072 ? 1 : 0;
    return n;
  };
  // Bytes of K and V: 512 * n_kv_heads * batch * context.
  cluster.device.memory_bytes = int64_t{512} * 8 * 131072;  // batch 1 with 8 KV heads
  // batch 1: all 6 pairs of head counts; batch 4: (8, 1), (16, 2); batch 8: (8, 1).
  EXPECT_EQ(n_longest(), 9);
}

TEST(ModelCurves, EveryGroupSizeHasEveryPayloadAndOneBest) {
  const ClusterSpec cluster = ideal_node(4);
  const ProbeRecord record = model_curves(cluster, 2048);
  std::map<std::tuple<CommOp, int, int64_t>, int> n_best;
  for (const CollectivePoint& p : record.collectives) {
    n_best[{p.op, p.n, p.bytes}] += p.best ? 1 : 0;
    EXPECT_GT(p.us, 0.0);
  }
  EXPECT_EQ(n_best.size(), 5U * 2 * 3);  // operations, n = 2 and 4, 512 to 2048 bytes
  for (const auto& [point, n] : n_best) EXPECT_EQ(n, 1);
}

}  // namespace
}  // namespace testbed
