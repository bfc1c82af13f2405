// The groups of GPUs of `testbed probe` on the emulation: all-reduces by NCCL and by our kernels,
// each as far as it goes, and messages between every two ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "kernels/cuda/cuda_device.hpp"
#include "launch/cuda/cuda_process.hpp"
#include "launch/cuda/gpu_probe_groups.hpp"
#include "tests/cuda_emulation/emulation.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

using ::testing::ElementsAre;

MpiWorld* world = nullptr;
CudaProcess* process = nullptr;

// Beyond it our kernels take no payload.
constexpr int64_t capacity_bytes = 4 << 10;
constexpr int64_t most_bytes = 16 << 10;

struct ProbeGpu : ::testing::Test {
  // Faults of the emulation's, while the groups are made.
  GpuProbeGroups make_groups(const std::string& faults = "") {
    emulation::set_faults(faults);
    GpuProbeGroups groups(*world,
                          *control,
                          nccl,
                          queue(),
                          {.deadline_s = deadline_s, .peer_capacity_bytes = capacity_bytes});
    emulation::set_faults("");
    return groups;
  }
  std::vector<CollectivePoint> collectives(const GpuProbeGroups& groups) {
    return measure_collectives(groups.groups(), *control, device, most_bytes);
  }
  cuda::Queue& queue() { return process->streams()->queue; }

  static constexpr double deadline_s = 30.0;  // a hang is an error soon
  std::unique_ptr<ControlChannel> control = world->make_control();
  NcclWorld nccl{*world, *control, queue(), process->streams()->clock, deadline_s};
  CudaDevice device{process->streams(), DType::F32, process->description()};
};

std::vector<int> sizes() {
  return world->size() == 4 ? std::vector<int>{2, 4} : std::vector<int>{2};
}

struct AllReduces {
  explicit AllReduces(const std::vector<CollectivePoint>& points, int n) {
    for (const CollectivePoint& point : points) {
      if (point.op != CommOp::all_reduce || point.n != n) continue;
      payloads[point.algorithm].insert(point.bytes);
      if (point.best) best.insert(point.bytes);
      most_bytes[point.algorithm] = point.most_bytes;
      slowest_us = std::max(slowest_us, point.us);
    }
  }
  std::map<CommAlgorithm, std::set<int64_t>> payloads;
  std::map<CommAlgorithm, int64_t> most_bytes;
  std::set<int64_t> best;  // that have a best algorithm
  double slowest_us = 0.0;
};

std::set<int64_t> powers_to(int64_t last) {
  std::set<int64_t> all;
  for (int64_t n_bytes = 512; n_bytes <= last; n_bytes *= 2) all.insert(n_bytes);
  return all;
}

// A slow machine may end a curve early.
#define SKIP_IF_SLOW(reduces) \
  if ((reduces).slowest_us > 0.4e6) GTEST_SKIP() << "a call took longer than a curve goes on for"

TEST_F(ProbeGpu, NcclIsMeasuredForAllPayloadsAndOursAsFarAsItsMemoryGoes) {
  const GpuProbeGroups groups = make_groups();
  const std::vector<CollectivePoint> points = collectives(groups);
  for (const int n : sizes()) {
    const AllReduces reduces(points, n);
    SKIP_IF_SLOW(reduces);
    EXPECT_EQ(reduces.payloads.at(CommAlgorithm::nccl), powers_to(most_bytes)) << n;
    EXPECT_EQ(reduces.most_bytes.at(CommAlgorithm::nccl), 0) << n;
    for (const CommAlgorithm ours : {CommAlgorithm::one_shot, CommAlgorithm::two_shot}) {
      EXPECT_EQ(reduces.payloads.at(ours), powers_to(capacity_bytes)) << n;
      EXPECT_EQ(reduces.most_bytes.at(ours), capacity_bytes) << n;
    }
    EXPECT_EQ(reduces.best, powers_to(most_bytes)) << n;
  }
}

int64_t n_mapped() { return emulation::call_counts()["cudaIpcOpenMemHandle"]; }

TEST_F(ProbeGpu, TheGroupAsARunHasItMapsItsPeersToo) {
  const int64_t before = n_mapped();
  const GpuProbeGroups groups = make_groups();
  int64_t n_peers = 0;
  for (const int n : sizes()) n_peers += n - 1;
  EXPECT_EQ(n_mapped() - before, 3 * n_peers) << "and the two forced ones";
  for (const ProbeGroup& group : groups.groups()) {
    EXPECT_EQ(group.as_chosen == nullptr, world->rank() >= group.size);
    std::vector<CommAlgorithm> algorithms;
    algorithms.reserve(group.all_reduce.size());
    for (const ProbeGroup::Forced& forced : group.all_reduce) {
      algorithms.push_back(forced.algorithm);
      EXPECT_EQ(forced.group == nullptr, group.as_chosen == nullptr);
    }
    EXPECT_THAT(algorithms,
                ElementsAre(CommAlgorithm::nccl, CommAlgorithm::one_shot, CommAlgorithm::two_shot));
  }
}

// A memory of a peer's that cannot be mapped.
std::string refused_on(int rank) {
  std::string faults;
  for (int i = 0; i < 64; ++i) {
    faults += (i == 0 ? "" : ",") + std::string("cudaIpcOpenMemHandle:1@") + std::to_string(rank);
  }
  return faults;
}

TEST_F(ProbeGpu, WherePeersCannotBeMappedNcclIsMeasuredAndBest) {
  const GpuProbeGroups groups = make_groups(refused_on(1));
  const std::vector<CollectivePoint> points = collectives(groups);
  for (const int n : sizes()) {
    const AllReduces reduces(points, n);
    SKIP_IF_SLOW(reduces);
    EXPECT_EQ(reduces.payloads.size(), 1U) << n;
    EXPECT_EQ(reduces.payloads.at(CommAlgorithm::nccl), powers_to(most_bytes)) << n;
    EXPECT_EQ(reduces.best, powers_to(most_bytes)) << n;
  }
}

// The first group of a size is measured: it has what it can have, whatever the others lack.
TEST_F(ProbeGpu, WhatOnlyAnotherGroupLacksIsMeasured) {
  if (world->size() != 4) GTEST_SKIP() << "of two groups";
  const GpuProbeGroups groups = make_groups(refused_on(3));
  ASSERT_EQ(groups.groups().size(), 2U);
  EXPECT_EQ(groups.groups()[0].all_reduce.size(), 3U);
  EXPECT_EQ(groups.groups()[1].all_reduce.size(), 1U);
  const AllReduces reduces(collectives(groups), 2);
  SKIP_IF_SLOW(reduces);
  EXPECT_EQ(reduces.best, powers_to(most_bytes));
}

// Ranks 0 and 2, and 1 and 3, send on one lane of a group: in one group, each one's message would
// stand behind the one that it waits for, and this would not end.
TEST_F(ProbeGpu, EveryTwoRanksSendToEachOtherAtOnce) {
  const GpuProbeGroups groups = make_groups();
  ASSERT_TRUE(groups.ways());
  const std::vector<PairPoint> pairs =
      measure_pairs(*groups.ways(), *control, device, int64_t{64} << 10);
  std::vector<std::pair<int, int>> ranks;
  ranks.reserve(pairs.size());
  for (const PairPoint& pair : pairs) {
    ranks.emplace_back(pair.first, pair.second);
    EXPECT_GT(pair.one_way_us, 0.0);
    EXPECT_GT(pair.both_ways_us, 0.0);
  }
  if (world->size() == 2) {
    EXPECT_TRUE(ranks.empty());
    return;
  }
  using Two = std::pair<int, int>;
  EXPECT_THAT(ranks, ElementsAre(Two{0, 1}, Two{0, 2}, Two{0, 3}, Two{1, 2}, Two{1, 3}, Two{2, 3}));
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  testbed::MpiWorld world;
  testing::InitGoogleTest(&argc, argv);
  testbed::CudaProcess process(world, *world.make_control(), {});
  testbed::world = &world;
  testbed::process = &process;
  return testbed::run_all_tests(world);
}
