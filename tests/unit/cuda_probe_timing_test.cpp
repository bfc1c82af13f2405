// How ops are timed on a device that works behind the host's back, on the emulation: by its own
// stamps, in graphs that replay equal calls.
#include <gmock/gmock.h>

#include <cstring>
#include <set>

#include "kernels/cuda/cuda_device.hpp"
#include "runtime/probe/measure_ops.hpp"
#include "runtime/probe/synthetic.hpp"
#include "runtime/probe/timing.hpp"

namespace testbed {
namespace {

struct Fixture {
  std::shared_ptr<CudaStreams> streams = std::make_shared<CudaStreams>();
  CudaDevice device{streams, DType::F32, "emulated"};
};

TEST(CudaProbeTiming, SyntheticTensorsAreTheHosts) {
  Fixture f;
  const Tensor host = synthetic_tensor(DType::F32, {3, 5});
  const Tensor on_device = synthetic_tensor(f.device, DType::F32, {3, 5});
  Tensor back(DType::F32, {3, 5});
  f.device.download(on_device, back);
  EXPECT_EQ(std::memcmp(back.data(), host.data(), static_cast<size_t>(host.n_bytes())), 0);
}

TEST(CudaProbeTiming, NoWorkTakesAtLeastAClocksStep) {
  Fixture f;
  EXPECT_GE(device_seconds(f.device, 0, [] {}), 1e-9);
  EXPECT_GE(device_seconds(f.device, 7, [] {}), 1e-9);
}

TEST(CudaProbeTiming, OpsAreTimedInGraphsOfTheSameCalls) {
  Fixture f;
  ASSERT_TRUE(f.device.captures());
  const Tensor x = synthetic_tensor(f.device, DType::F32, {2, 32});
  const Tensor total = synthetic_tensor(f.device, DType::F32, {2, 32});
  std::set<int64_t> calls;
  const ProbeOp op{.kind = OpKind::norm,
                   .point = ElementwisePoint{.op = OpKind::norm, .rows = 2, .width = 32},
                   .run = [&](int64_t call) {
                     calls.insert(call);
                     f.device.add(total, x);
                   }};
  const std::vector<MeasuredOp> measured = measure_ops(f.device, {op, op});
  ASSERT_EQ(measured.size(), 2U);
  for (const MeasuredOp& m : measured) {
    EXPECT_GT(m.seconds, 0.0);
    EXPECT_EQ(m.kind, OpKind::norm);
  }
  // Each op: its first call eagerly, one capture, then replays, all from call 0 on.
  EXPECT_EQ(*calls.begin(), 0);
  EXPECT_EQ(f.device.queue().stats().captures, 2);
  EXPECT_EQ(f.device.queue().stats().recaptures, 0);
  EXPECT_GE(f.device.queue().stats().replays, 4);
}

}  // namespace
}  // namespace testbed
