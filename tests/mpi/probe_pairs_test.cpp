// Messages between any two of three ranks are timed on every rank alike, and arrive. All-reduces
// are timed as a run does them.
#include <gmock/gmock.h>
#include <mpi.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "kernels/cpu/cpu_device.hpp"
#include "parallel/comm/mpi_world.hpp"
#include "runtime/probe/measure_collectives.hpp"
#include "runtime/probe/measure_pairs.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

MpiWorld* world = nullptr;

std::unique_ptr<Communicator> group_of_all() {
  std::vector<int> ranks(static_cast<size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world->make_group(ranks, Axis::tp, {});
}

TEST(ProbePairs, EveryPairOnceAndTheSameOnEveryRank) {
  CpuDevice device(std::make_shared<cpu::ThreadPool>(1, false), cpu::best_isa(), DType::F32);
  const auto control = world->make_control();
  const std::unique_ptr<Communicator> upwards = group_of_all();
  const std::unique_ptr<Communicator> downwards = group_of_all();
  const MessageWays ways{*upwards, *downwards};
  const auto points = measure_pairs(ways, *control, device, 64 << 10);
  ASSERT_EQ(points.size(), 3U);
  const int expected[][2] = {{0, 1}, {0, 2}, {1, 2}};
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].first, expected[i][0]);
    EXPECT_EQ(points[i].second, expected[i][1]);
    EXPECT_EQ(points[i].bytes, 64 << 10);
    EXPECT_GT(points[i].one_way_us, 0.0);
    EXPECT_GT(points[i].both_ways_us, 0.0);
    double of_rank_0 = points[i].one_way_us;
    MPI_Bcast(&of_rank_0, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    EXPECT_EQ(points[i].one_way_us, of_rank_0);
  }
  EXPECT_TRUE(measure_pairs(ways, *control, device, 1024).empty());
}

// A tensor that others can map is an anonymous file.
bool holds_shared_tensors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::any_of(begin(files), end(files), [](const auto& file) {
    std::error_code closed;  // the iterator's own
    return read_symlink(file.path(), closed).string().find("memfd:testbed") != std::string::npos;
  });
}

struct SharedTensors final : CommHooks {
  int n_shared = 0;
  int n_calls = 0;
  void before(const CommRecord& record, const GroupInfo& /*group*/) override {
    if (record.op != CommOp::all_reduce) return;
    ++n_calls;
    n_shared += holds_shared_tensors() ? 1 : 0;
  }
};

TEST(ProbeCollectives, AllReducesAreOnTensorsThatTheRanksShareAsInARun) {
  CpuDevice device(std::make_shared<cpu::ThreadPool>(1, false), cpu::best_isa(), DType::F32);
  const auto control = world->make_control();
  const std::unique_ptr<Communicator> all = group_of_all();
  const auto seen = std::make_shared<SharedTensors>();
  all->add_hooks(seen);
  const ProbeGroup forced{.size = world->size(),
                          .as_chosen = all.get(),
                          .all_reduce = {{CommAlgorithm::one_shot, all.get()}}};
  EXPECT_FALSE(measure_collectives({forced}, *control, device, 1024).empty());
  EXPECT_GT(seen->n_calls, 0);
  EXPECT_EQ(seen->n_shared, seen->n_calls);
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) { return testbed::run_all_tests(argc, argv, testbed::world); }
