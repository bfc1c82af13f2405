// The main of tests that run whole ranks on the CPU device.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "launch/cpu_rank.hpp"
#include "tests/mpi/fixtures_runs.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed::fixtures {

// Runs all tests with world and process set.
inline int run_cpu_rank_tests(int argc, char** argv, MpiWorld*& world, CpuProcess*& process) {
  MpiWorld the_world;
  CpuProcess the_process(the_world, std::nullopt);
  world = &the_world;
  process = &the_process;
  ::testing::InitGoogleTest(&argc, argv);
  return run_all_tests(the_world);
}

}  // namespace testbed::fixtures
