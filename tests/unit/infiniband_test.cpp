// Ports of InfiniBand as Linux shows them: which are up, what they carried.
#include "parallel/comm/infiniband.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace testbed {
namespace {

namespace fs = std::filesystem;

class Infiniband : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  void add_port(const std::string& port, const std::string& state) const {
    write(port + "/state", state);
  }
  void count(const std::string& port, const std::string& sent, const std::string& received) const {
    write(port + "/counters/port_xmit_data", sent);
    write(port + "/counters/port_rcv_data", received);
  }

  // Of this test: the others run beside it.
  fs::path folder_ = fs::path(testing::TempDir()) /
                     (std::string("testbed_infiniband_") +
                      testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(Infiniband, counts_active_ports) {
  EXPECT_EQ(active_infiniband_ports(folder_), 0);
  add_port("mlx5_0/ports/1", "4: ACTIVE");
  add_port("mlx5_1/ports/1", "1: DOWN");
  add_port("mlx5_1/ports/2", "4: ACTIVE");
  EXPECT_EQ(active_infiniband_ports(folder_), 2);
}

TEST_F(Infiniband, sums_words_of_four_bytes_over_the_ports_that_are_up) {
  EXPECT_FALSE(infiniband_bytes(folder_));
  add_port("mlx5_0/ports/1", "4: ACTIVE");
  add_port("mlx5_1/ports/1", "4: ACTIVE");
  add_port("mlx5_2/ports/1", "1: DOWN");
  count("mlx5_0/ports/1", "1000000000000", "7");
  count("mlx5_1/ports/1", "5", "8");
  count("mlx5_2/ports/1", "99", "99");
  const auto bytes = infiniband_bytes(folder_);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->sent, 4'000'000'000'020);
  EXPECT_EQ(bytes->received, 60);
}

TEST_F(Infiniband, says_nothing_where_a_port_does_not_tell) {
  add_port("mlx5_0/ports/1", "4: ACTIVE");
  EXPECT_FALSE(infiniband_bytes(folder_));  // no counters
  count("mlx5_0/ports/1", "5", "4294967295");
  EXPECT_FALSE(infiniband_bytes(folder_));  // one that stopped at its end
  count("mlx5_0/ports/1", "5", "N/A");
  EXPECT_FALSE(infiniband_bytes(folder_));
}

TEST_F(Infiniband, takes_differences) {
  const auto bytes = between(PortBytes{100, 200}, PortBytes{160, 201});
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->sent, 60);
  EXPECT_EQ(bytes->received, 1);
  EXPECT_FALSE(between(std::nullopt, PortBytes{}));
  EXPECT_FALSE(between(PortBytes{}, std::nullopt));
  EXPECT_FALSE(between(PortBytes{100, 200}, PortBytes{160, 0}));  // set back
}

}  // namespace
}  // namespace testbed
