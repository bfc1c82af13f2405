// Which GPU a rank has, and which cores near it (D18).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>

#include "launch/binding.hpp"
#include "launch/gpu_placement.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* gpu_a = "0000:1b:00.0";
constexpr const char* gpu_b = "0000:9b:00.0";

GpuSeat seat(int rank,
             const std::string& host,
             int local_rank,
             const std::string& pci_bus_id,
             const std::string& uuid = "") {
  return {.rank = rank,
          .host = host,
          .local_rank = local_rank,
          .n_visible = 2,
          .pci_bus_id = pci_bus_id,
          .uuid = uuid};
}

TEST(GpuPlacement, is_the_rank_among_those_of_the_host) {
  EXPECT_EQ(device_index(0, 8), 0);
  EXPECT_EQ(device_index(7, 8), 7);
  EXPECT_EQ(device_index(3, 1), 0);  // the launcher shows each rank its own
}

TEST(GpuPlacement, of_one_rank_a_gpu_is_fine) {
  EXPECT_EQ(why_placement_fails({}, false), std::nullopt);
  EXPECT_EQ(why_placement_fails({seat(0, "x", 0, gpu_a, "GPU-1"),
                                 seat(1, "x", 1, gpu_b, "GPU-2"),
                                 seat(2, "y", 0, gpu_a, "GPU-3"),
                                 seat(3, "y", 1, gpu_b)},
                                false),
            std::nullopt);
}

TEST(GpuPlacement, of_two_ranks_a_gpu_is_refused) {
  const std::vector<GpuSeat> seats{seat(0, "x", 0, gpu_a, "GPU-1"),
                                   seat(1, "y", 0, gpu_a, "GPU-2"),
                                   seat(2, "x", 1, gpu_a, "GPU-1")};
  EXPECT_THAT(why_placement_fails(seats, false).value_or(""),
              HasSubstr("ranks 0 and 2 of host x both use GPU 0000:1b:00.0 (2 visible to rank 0, "
                        "2 to rank 2)"));
  EXPECT_EQ(why_placement_fails(seats, true), std::nullopt);
  EXPECT_THAT(shared_gpu_labels(seats),
              ElementsAre("shared GPU 0000:1b:00.0 of host x: ranks 0, 2"));
  EXPECT_TRUE(shares_gpu(seats, "x"));
  EXPECT_FALSE(shares_gpu(seats, "y"));
}

TEST(GpuPlacement, sees_one_gpu_in_two_containers) {
  const std::vector<GpuSeat> seats{seat(0, "x", 0, gpu_a, "GPU-1"),
                                   seat(1, "x#2", 0, gpu_a, "GPU-1")};
  EXPECT_THAT(why_placement_fails(seats, false).value_or(""),
              HasSubstr("ranks 0 (host x) and 1 (host x#2) both use GPU"));
  EXPECT_TRUE(shares_gpu(seats, "x#2"));
}

TEST(GpuPlacement, names_instances_of_one_gpu) {
  const std::vector<GpuSeat> seats{seat(0, "x", 0, gpu_a, "MIG-1"),
                                   seat(1, "x", 1, gpu_a, "MIG-2")};
  EXPECT_THAT(why_placement_fails(seats, false).value_or(""), HasSubstr("instances of GPU"));
}

TEST(GpuPlacement, needs_a_gpu_for_each_rank) {
  GpuSeat none = seat(1, "x", 1, "");
  none.n_visible = 0;
  for (const bool allow_shared_gpu : {false, true}) {
    EXPECT_THAT(why_placement_fails({seat(0, "x", 0, gpu_a), none}, allow_shared_gpu).value_or(""),
                HasSubstr("rank 1 sees no GPU on host x"));
  }
}

TEST(GpuPlacement, lists_a_hosts_gpus_by_local_rank) {
  const std::vector<GpuSeat> seats{
      seat(0, "x", 1, gpu_b), seat(1, "y", 0, "other"), seat(2, "x", 0, gpu_a)};
  EXPECT_THAT(gpus_of_host(seats, "x"), ElementsAre(gpu_a, gpu_b));
  EXPECT_THAT(shared_gpu_labels(seats), IsEmpty());
}

// hwloc reads the host's topology from a file (tests/fixtures/topologies), and binds for real.
class GpuBinding : public testing::Test {
 protected:
  static std::string topology() {
    return std::string(TESTBED_SOURCE_DIR) + "/tests/fixtures/topologies/two_gpus.xml";
  }
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    if (!CPU_ISSET(0, &before_) || !CPU_ISSET(1, &before_)) GTEST_SKIP() << "needs cores 0 and 1";
    bind({0, 1});
    setenv("HWLOC_XMLFILE", topology().c_str(), 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
  }
  void TearDown() override {
    unsetenv("HWLOC_XMLFILE");
    unsetenv("HWLOC_THISSYSTEM");
    sched_setaffinity(0, sizeof before_, &before_);
  }
  static void bind(std::initializer_list<int> cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(core, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
  }
  static std::vector<int> bound_to() {
    cpu_set_t set;
    EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
    return cores;
  }

 private:
  cpu_set_t before_ = {};
};

TEST_F(GpuBinding, knows_the_cores_near_a_gpu) {
  EXPECT_EQ(cores_near_pci(gpu_a, topology()), "0");
  EXPECT_EQ(cores_near_pci(gpu_b, topology()), "1");
  EXPECT_EQ(cores_near_pci("0000:ff:00.0", topology()), std::nullopt);
}

TEST_F(GpuBinding, is_to_the_cores_near_the_gpu) {
  const Binding binding = bind_to_pci({gpu_a, gpu_b}, 1);
  EXPECT_EQ(binding.n_cores, 1);
  EXPECT_EQ(binding.cores, "1");
  EXPECT_THAT(bound_to(), ElementsAre(1));
}

// The only rank of the host stays near its GPU, too.
TEST_F(GpuBinding, of_one_rank) {
  EXPECT_EQ(bind_to_pci({gpu_b}, 0).cores, "1");
  EXPECT_THAT(bound_to(), ElementsAre(1));
}

TEST_F(GpuBinding, of_more_ranks_than_cores_is_shared) {
  const Binding binding = bind_to_pci({gpu_a, gpu_a, gpu_b}, 1);
  EXPECT_EQ(binding.n_cores, 1);
  EXPECT_EQ(binding.cores, "0 (unbound)");
  EXPECT_THAT(bound_to(), ElementsAre(0));
}

TEST_F(GpuBinding, keeps_a_launchers) {
  bind({0});
  const Binding far = bind_to_pci({gpu_a, gpu_b}, 1);
  EXPECT_EQ(far.cores, "0 (not near GPU 0000:9b:00.0)");
  EXPECT_THAT(bound_to(), ElementsAre(0));
  const Binding near = bind_to_pci({gpu_a, gpu_b}, 0);
  EXPECT_EQ(near.cores, "0");
}

TEST_F(GpuBinding, without_a_known_node_is_a_slice_of_the_host) {
  const Binding binding = bind_to_pci({"0000:ff:00.0", "0000:fe:00.0"}, 1);
  EXPECT_EQ(binding.cores, "1 (the NUMA node of GPU 0000:fe:00.0 is not known)");
  EXPECT_THAT(bound_to(), ElementsAre(1));
}

}  // namespace
}  // namespace testbed
