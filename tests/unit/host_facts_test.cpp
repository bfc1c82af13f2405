#include "launch/host_facts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::Pair;

namespace fs = std::filesystem;

class HostFacts : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(root_); }
  void TearDown() override { fs::remove_all(root_); }
  fs::path root_ = fs::path(testing::TempDir()) / "host_facts_test";
};

TEST_F(HostFacts, only_what_may_change_a_measurement_is_taken_from_the_environment) {
  const char* const environment[] = {"HOME=/root",
                                     "NCCL_ALGO=Ring",
                                     "CUDA_VISIBLE_DEVICES=3",
                                     "TESTBED_ONE_SHOT_BYTES=0",
                                     "UCX_TLS=rc=x",
                                     nullptr};
  EXPECT_THAT(environment_facts(environment),
              ElementsAre(Pair("env.NCCL_ALGO", "Ring"),
                          Pair("env.TESTBED_ONE_SHOT_BYTES", "0"),
                          Pair("env.UCX_TLS", "rc=x")));
}

TEST_F(HostFacts, the_processor_is_read_from_linux_files) {
  fs::create_directories(root_);
  std::ofstream(root_ / "cpuinfo")
      << "processor\t: 0\nmodel name\t: EPYC 9654\nmicrocode\t: 0xa1\nmodel name\t: other\n";
  std::ofstream(root_ / "governor") << "performance\n";
  EXPECT_THAT(processor_facts(root_ / "cpuinfo", root_ / "governor"),
              ElementsAre(Pair("governor", "performance"),
                          Pair("microcode", "0xa1"),
                          Pair("processor", "EPYC 9654")));
  EXPECT_TRUE(processor_facts(root_ / "none", root_ / "none").empty());
}

TEST_F(HostFacts, the_nearest_nics_share_most_of_the_way) {
  const fs::path bus = root_ / "devices/pci0000:00";
  const auto add = [&](const fs::path& device, const fs::path& name) {
    fs::create_directories(bus / device);
    fs::create_directories((root_ / name).parent_path());
    fs::create_directory_symlink(bus / device, root_ / name);
  };
  const auto add_nic = [&](const fs::path& device, const std::string& name) {
    fs::create_directories(root_ / "class/infiniband" / name);
    add(device, root_ / "class/infiniband" / name / "device");
  };
  add("01.0/0000:1b:00.0", "bus/pci/devices/0000:1b:00.0");
  EXPECT_EQ(nearest_nics("0000:1b:00.0", root_), "");
  add_nic("01.0/0000:1c:00.0", "mlx5_1");
  add_nic("02.0/0000:2c:00.0", "mlx5_2");
  add_nic("01.0/0000:1d:00.0", "mlx5_0");
  EXPECT_EQ(nearest_nics("0000:1b:00.0", root_), "mlx5_0, mlx5_1");
  EXPECT_EQ(nearest_nics("0000:99:00.0", root_), "");
}

}  // namespace
}  // namespace testbed
