#include "launch/device_choice.hpp"

#include <gtest/gtest.h>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

TEST(DeviceChoice, a_gpu_that_would_lie_idle_is_an_error) {
  const char* const there = "/dev/null";
  EXPECT_THROW(refuse_idle_gpu(DeviceChoice::automatic, there), ConfigError);
  EXPECT_NO_THROW(refuse_idle_gpu(DeviceChoice::cpu, there));
  EXPECT_NO_THROW(refuse_idle_gpu(DeviceChoice::sim, there));
  EXPECT_NO_THROW(refuse_idle_gpu(DeviceChoice::automatic, "/dev/no-such-device"));
}

TEST(DeviceChoice, options_of_gpus_need_one) {
  const auto refuse = refuse_gpu_options;
  EXPECT_NO_THROW(refuse(Layout::automatic, false));
  EXPECT_NO_THROW(refuse(Layout::mpi, false));
  EXPECT_THROW(refuse(Layout::automatic, true), ConfigError);
  for (const Layout layout : {Layout::tcp,
                              Layout::shm,
                              Layout::nvlink,
                              Layout::nvlink_ring,
                              Layout::pcie,
                              Layout::ib,
                              Layout::socket}) {
    EXPECT_THROW(refuse(layout, false), ConfigError) << layout_name(layout);
  }
}

TEST(DeviceChoice, options_of_a_cluster_need_one) {
  EXPECT_NO_THROW(refuse_idle_cluster_options({}));
  EXPECT_THROW(refuse_idle_cluster_options({.link_us = 5.0}), ConfigError);
  EXPECT_THROW(refuse_idle_cluster_options({.algorithm = "ring"}), ConfigError);
  EXPECT_NO_THROW(refuse_idle_cluster_options({.name = "dgx-h100", .link_us = 5.0}));
}

}  // namespace
}  // namespace testbed
