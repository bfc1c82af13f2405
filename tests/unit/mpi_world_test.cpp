// What MpiWorld decides without MPI.
#include "parallel/comm/mpi_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace testbed {
namespace {

constexpr const char* launchers[] = {
    "SLURM_NTASKS", "PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE"};

class Singleton : public testing::TestWithParam<const char*> {
 protected:
  Singleton() {
    for (const char* name : launchers) unsetenv(name);
  }
  ~Singleton() override { unsetenv(GetParam()); }
};

TEST_P(Singleton, D17_under_a_launcher_is_recognised) {
  EXPECT_EQ(singleton_under_launcher(1), std::nullopt);
  setenv(GetParam(), "4", 1);
  const auto reason = singleton_under_launcher(1);
  ASSERT_TRUE(reason.has_value());
  EXPECT_THAT(*reason, testing::HasSubstr(std::string(GetParam()) + "=4"));
  EXPECT_EQ(singleton_under_launcher(4), std::nullopt);
  setenv(GetParam(), "1", 1);
  EXPECT_EQ(singleton_under_launcher(1), std::nullopt);
}
INSTANTIATE_TEST_SUITE_P(Launchers, Singleton, testing::ValuesIn(launchers));

// A job of one rank that mpirun started in an allocation for more.
TEST(Singleton, D17_mpirun_of_one_rank_is_meant) {
  for (const char* name : launchers) unsetenv(name);
  setenv("SLURM_NTASKS", "4", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  EXPECT_EQ(singleton_under_launcher(1), std::nullopt);
  for (const char* name : launchers) unsetenv(name);
}

TEST(Singleton, D17_a_task_of_srun_without_pmi_is_told_before_mpi_starts) {
  for (const char* name : {"SLURM_STEP_ID", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    unsetenv(name);
  }
  EXPECT_EQ(task_without_pmi(), std::nullopt);
  setenv("SLURM_STEP_ID", "0", 1);
  EXPECT_THAT(task_without_pmi(), testing::Optional(testing::HasSubstr("srun --mpi=pmix")));
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    setenv(name, "0", 1);
    EXPECT_EQ(task_without_pmi(), std::nullopt) << name;
    unsetenv(name);
  }
  unsetenv("SLURM_STEP_ID");
}

TEST(Transport, by_hosts) {
  EXPECT_EQ(transport_of({"a"}, true), "none");
  EXPECT_EQ(transport_of({"a", "a"}, true), "shm");
  EXPECT_EQ(transport_of({"a", "b"}, true), "tcp");
  EXPECT_EQ(transport_of({"a", "a", "b"}, true), "mixed");
  EXPECT_EQ(transport_of({"a", "a"}, false), "tcp");
  EXPECT_EQ(transport_of({"a", "a", "b"}, false), "tcp");
}

TEST(Transport, shared_memory_may_be_left_out) {
  EXPECT_TRUE(allows_shared_memory(""));
  EXPECT_TRUE(allows_shared_memory("vader,tcp,self"));
  EXPECT_TRUE(allows_shared_memory("self,sm"));
  EXPECT_FALSE(allows_shared_memory("tcp,self"));
  EXPECT_TRUE(allows_shared_memory("^openib"));
  EXPECT_FALSE(allows_shared_memory("^vader,openib"));
}

}  // namespace
}  // namespace testbed
